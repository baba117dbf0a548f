-- The index: a projection of a jobs directory. Delete the file at any time; it is built again.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE jobs (
    name TEXT PRIMARY KEY,
    status TEXT NOT NULL,          -- of the record; 'unknown' without a record
    is_live INTEGER NOT NULL,      -- whether a process runs the job
    planned INTEGER,
    pending INTEGER,
    pruned INTEGER,
    stopped TEXT,
    pause TEXT,                    -- JSON
    limits TEXT,                   -- JSON: rollouts at once by model endpoint
    variants TEXT,                 -- JSON: the names in the order of the schedule
    baseline TEXT,                 -- the variant that others are compared with, by the plan
    created REAL,
    problem TEXT,                  -- why a part of the job cannot be shown
    files TEXT NOT NULL,           -- JSON: what was read of the files of the job
    mark TEXT NOT NULL             -- JSON: how far the record was read
) WITHOUT ROWID;

CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    job TEXT NOT NULL,             -- '' outside a job
    slot TEXT,
    variant TEXT,
    attempt INTEGER,
    epoch TEXT,
    has_files INTEGER NOT NULL,
    task TEXT NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,                   -- why there is no reward, in one line
    boundary TEXT NOT NULL,        -- of the error; '' without one
    error_type TEXT,
    cause TEXT,                    -- who prevented a verdict
    fingerprint TEXT,
    reward REAL,
    paid REAL,                     -- as means count it: a tampered verdict is 0
    stderr REAL,
    spread TEXT,                   -- JSON
    leaves INTEGER NOT NULL,
    scored INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    asks INTEGER NOT NULL,
    branches INTEGER NOT NULL,
    tampered INTEGER NOT NULL,
    grading TEXT,
    integrity TEXT,
    cost REAL,
    tokens_in INTEGER,
    tokens_out INTEGER,
    started REAL,
    finished REAL NOT NULL,        -- of a rollout that has not ended: its last event
    seconds REAL,
    phase TEXT,
    activity TEXT,
    seq INTEGER NOT NULL,
    is_final INTEGER NOT NULL,
    counts INTEGER NOT NULL,       -- whether the record of the job counts this attempt
    is_current INTEGER NOT NULL,   -- whether this attempt stands for its slot
    problem TEXT,
    reward_key REAL NOT NULL,      -- sorts an unscored rollout before every reward
    UNIQUE (job, name)
);
CREATE INDEX runs_name ON runs (name);
CREATE INDEX runs_slot ON runs (job, slot);
CREATE INDEX runs_when ON runs (finished, id);
CREATE INDEX runs_reward ON runs (reward_key, id);
CREATE INDEX runs_task ON runs (task, id);
CREATE INDEX runs_steps ON runs (steps, id);
CREATE INDEX runs_job_when ON runs (job, finished, id);
CREATE INDEX runs_job_reward ON runs (job, reward_key, id);
CREATE INDEX runs_status ON runs (status, boundary);
CREATE INDEX runs_fingerprint ON runs (fingerprint) WHERE fingerprint IS NOT NULL;

-- The mean reward signals of each rollout. The step -1 is the whole rollout.
CREATE TABLE rewards (
    run INTEGER NOT NULL,
    space TEXT NOT NULL,
    granularity TEXT NOT NULL,
    step INTEGER NOT NULL,
    mean REAL,                     -- NULL if each verdict is unscored
    signals INTEGER NOT NULL,
    unscored INTEGER NOT NULL,
    bin INTEGER NOT NULL,
    PRIMARY KEY (run, space, granularity, step)
) WITHOUT ROWID;

-- The same summed over the current attempts that have ended. Changed together with the rows of `runs`.
CREATE TABLE reward_cells (
    job TEXT NOT NULL,
    variant TEXT NOT NULL,
    space TEXT NOT NULL,
    granularity TEXT NOT NULL,
    step INTEGER NOT NULL,
    runs INTEGER NOT NULL,         -- rollouts with a value
    total REAL NOT NULL,           -- of their means
    squares REAL NOT NULL,
    signals INTEGER NOT NULL,
    unscored INTEGER NOT NULL,     -- verdicts without a value
    bin0 INTEGER NOT NULL, bin1 INTEGER NOT NULL, bin2 INTEGER NOT NULL, bin3 INTEGER NOT NULL,
    bin4 INTEGER NOT NULL, bin5 INTEGER NOT NULL, bin6 INTEGER NOT NULL, bin7 INTEGER NOT NULL,
    PRIMARY KEY (job, variant, space, granularity, step)
) WITHOUT ROWID;

-- How far each rollout was followed.
CREATE TABLE follows (
    run INTEGER PRIMARY KEY,
    log TEXT NOT NULL,             -- inode, time of the last write and size of events.jsonl
    result TEXT NOT NULL,          -- the same of result.json
    position INTEGER NOT NULL,     -- the bytes of whole lines that were read
    lines INTEGER NOT NULL,
    fold TEXT NOT NULL,            -- JSON
    attempt TEXT NOT NULL,         -- JSON: what the record of the job says
    is_settled INTEGER NOT NULL    -- whether the rollout has ended, so that it is seldom looked at
);
CREATE INDEX follows_open ON follows (is_settled) WHERE is_settled = 0;

-- Counters of current attempts. Changed together with each row of `runs`.
CREATE TABLE cells (
    job TEXT NOT NULL,
    task TEXT NOT NULL,
    agent TEXT NOT NULL,
    model TEXT NOT NULL,
    status TEXT NOT NULL,
    boundary TEXT NOT NULL,
    n INTEGER NOT NULL,
    scored INTEGER NOT NULL,
    total REAL NOT NULL,
    squares REAL NOT NULL,
    cost REAL NOT NULL,
    costs INTEGER NOT NULL,        -- the number of rollouts with a known cost
    PRIMARY KEY (job, task, agent, model, status, boundary)
) WITHOUT ROWID;

-- The same by job alone, and with the job '*' over everything.
CREATE TABLE totals (
    job TEXT NOT NULL,
    status TEXT NOT NULL,
    boundary TEXT NOT NULL,
    n INTEGER NOT NULL,
    scored INTEGER NOT NULL,
    total REAL NOT NULL,
    squares REAL NOT NULL,
    cost REAL NOT NULL,
    costs INTEGER NOT NULL,
    PRIMARY KEY (job, status, boundary)
) WITHOUT ROWID;

-- The values that a filter offers, with the number of current attempts.
CREATE TABLE facets (
    kind TEXT NOT NULL,
    value TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (kind, value)
) WITHOUT ROWID;

CREATE TABLE steps (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    node TEXT NOT NULL,
    title TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX steps_run ON steps (run);
CREATE VIRTUAL TABLE step_words USING fts5 (
    title, body, content='steps', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
);
