-- The record of jobs. SQLite and Postgres take this text unchanged.
-- Every child row names its job, the slot by its place in the schedule (idx), and the entry:
-- the number of the row among the attempts of its slot.

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    epoch BIGINT NOT NULL,          -- raised by each writer; an older writer is refused
    revision BIGINT NOT NULL,       -- the newest plan revision
    cursor BIGINT NOT NULL,         -- the number of leading slots that are all resolved
    rewrites BIGINT NOT NULL,       -- raised when a slot before the cursor changes
    home TEXT NOT NULL,             -- the directory of the job, as its newest writer knew it
    control TEXT NOT NULL,          -- the state and the pause, as JSON
    created DOUBLE PRECISION NOT NULL
);

CREATE TABLE revisions (
    job BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    config_digest TEXT NOT NULL,
    plan TEXT NOT NULL,             -- JSON
    created DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (job, revision)
);

CREATE TABLE slots (
    job BIGINT NOT NULL,
    idx BIGINT NOT NULL,
    name TEXT NOT NULL,
    variant TEXT NOT NULL,
    task TEXT NOT NULL,
    replication BIGINT NOT NULL,
    task_digest TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'completed', 'failed', 'skipped_pruned')),
    PRIMARY KEY (job, idx),
    UNIQUE (job, name)
);

CREATE TABLE attempts (
    job BIGINT NOT NULL,
    idx BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    epoch BIGINT NOT NULL,          -- of the writer that dispatched the attempt
    rollout TEXT NOT NULL,
    worker TEXT NOT NULL,
    status TEXT NOT NULL CHECK
        (status IN ('running', 'interrupted', 'scored', 'unscored', 'cancelled', 'lost')),
    error_boundary TEXT,
    error_type TEXT,
    error_message TEXT,
    fingerprint TEXT,
    started DOUBLE PRECISION,
    finished DOUBLE PRECISION,
    counted INTEGER NOT NULL CHECK (counted IN (0, 1)),
    duplicate INTEGER NOT NULL CHECK (duplicate IN (0, 1) AND counted + duplicate < 2),
    PRIMARY KEY (job, idx, entry)
);

CREATE TABLE records (
    job BIGINT NOT NULL,
    idx BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    record TEXT NOT NULL,           -- the RolloutRecord that counts, as JSON
    PRIMARY KEY (job, idx)
);

CREATE TABLE metrics (
    job BIGINT NOT NULL,
    idx BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    name TEXT NOT NULL,
    value DOUBLE PRECISION NOT NULL,
    measured INTEGER NOT NULL CHECK (measured IN (0, 1)),
    PRIMARY KEY (job, idx, entry, name)
);

CREATE TABLE events (
    job BIGINT NOT NULL,
    idx BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    kind TEXT NOT NULL,
    ts DOUBLE PRECISION,
    data TEXT NOT NULL,             -- JSON
    PRIMARY KEY (job, idx, entry, seq)
);

CREATE TABLE refs (
    job BIGINT NOT NULL,
    idx BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    role TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size BIGINT NOT NULL,
    PRIMARY KEY (job, idx, entry, role)
);
