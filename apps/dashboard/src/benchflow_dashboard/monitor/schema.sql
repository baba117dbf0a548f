CREATE TABLE monitor_spans (
    trace TEXT NOT NULL,
    id TEXT NOT NULL,
    conversation TEXT,
    start_ns BIGINT NOT NULL,
    end_ns BIGINT NOT NULL,
    is_root INTEGER NOT NULL,
    received DOUBLE PRECISION NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (trace, id)
);
CREATE INDEX monitor_spans_by_conversation ON monitor_spans (conversation);
CREATE INDEX monitor_spans_by_time ON monitor_spans (received);

CREATE TABLE monitor_open (
    trace TEXT PRIMARY KEY,
    changed DOUBLE PRECISION NOT NULL,
    folded DOUBLE PRECISION NOT NULL,
    has_root INTEGER NOT NULL
);
CREATE INDEX monitor_open_by_time ON monitor_open (changed);

CREATE TABLE monitor_rollouts (
    id TEXT PRIMARY KEY,
    service TEXT NOT NULL,
    version TEXT NOT NULL,
    environment TEXT NOT NULL,
    status TEXT NOT NULL,
    closed INTEGER NOT NULL,
    started DOUBLE PRECISION NOT NULL,
    ended DOUBLE PRECISION NOT NULL,
    updated DOUBLE PRECISION NOT NULL,
    steps INTEGER NOT NULL,
    tool_calls INTEGER NOT NULL,
    tool_errors INTEGER NOT NULL,
    loops INTEGER NOT NULL,
    asks INTEGER NOT NULL,
    spans INTEGER NOT NULL,
    unknown_spans INTEGER NOT NULL,
    input_tokens BIGINT,
    output_tokens BIGINT,
    cost DOUBLE PRECISION,
    models TEXT NOT NULL,
    dialects TEXT NOT NULL,
    error TEXT NOT NULL
);
CREATE INDEX monitor_rollouts_by_time ON monitor_rollouts (started);
CREATE INDEX monitor_rollouts_by_service ON monitor_rollouts (service, version, started);

CREATE TABLE monitor_rewards (
    rollout TEXT NOT NULL,
    source TEXT NOT NULL,
    space TEXT NOT NULL,
    granularity TEXT NOT NULL,
    step TEXT NOT NULL,
    value DOUBLE PRECISION,
    error TEXT NOT NULL,
    PRIMARY KEY (rollout, source, granularity, step)
);
CREATE INDEX monitor_rewards_by_source ON monitor_rewards (source, rollout);

CREATE TABLE monitor_alerts (
    id TEXT PRIMARY KEY,
    rule TEXT NOT NULL,
    grp TEXT NOT NULL,
    opened DOUBLE PRECISION NOT NULL,
    resolved DOUBLE PRECISION,
    message TEXT NOT NULL,
    n INTEGER NOT NULL,
    value DOUBLE PRECISION,
    baseline DOUBLE PRECISION,
    baseline_n INTEGER,
    silenced INTEGER NOT NULL
);
CREATE INDEX monitor_alerts_by_time ON monitor_alerts (opened);

CREATE TABLE monitor_silences (
    rule TEXT NOT NULL,
    grp TEXT NOT NULL,
    until DOUBLE PRECISION NOT NULL,
    author TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (rule, grp)
);

CREATE TABLE monitor_deliveries (
    alert TEXT NOT NULL,
    event TEXT NOT NULL,
    body TEXT NOT NULL,
    tries INTEGER NOT NULL,
    next_try DOUBLE PRECISION NOT NULL,
    error TEXT NOT NULL,
    PRIMARY KEY (alert, event)
);
