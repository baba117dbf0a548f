-- Notes and labels of users. No run writes here, and nothing can build this file anew.

CREATE TABLE labels (
    rollout TEXT NOT NULL,
    node TEXT NOT NULL,            -- '' for the whole rollout
    label TEXT NOT NULL,
    author TEXT NOT NULL,
    at REAL NOT NULL,              -- seconds since the epoch
    PRIMARY KEY (rollout, node, label)
) WITHOUT ROWID;
CREATE INDEX labels_label ON labels (label, rollout);

CREATE TABLE notes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    rollout TEXT NOT NULL,
    node TEXT NOT NULL,
    text TEXT NOT NULL,
    author TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX notes_rollout ON notes (rollout, id);
