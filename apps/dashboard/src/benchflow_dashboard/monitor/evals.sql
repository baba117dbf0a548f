-- What a database of version 0.8.0 lacks.
CREATE INDEX monitor_rollouts_by_end ON monitor_rollouts (ended);

CREATE TABLE monitor_evals (
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
    error TEXT NOT NULL,
    job TEXT NOT NULL,
    mark TEXT NOT NULL
);
CREATE INDEX monitor_evals_by_service ON monitor_evals (service, version);
