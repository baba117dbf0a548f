"""The tables of the mail service."""

SYSTEM_LABELS = ("inbox", "unread", "starred", "sent", "drafts", "trash")

MAIL_TABLES = """
CREATE TABLE IF NOT EXISTS labels (
    name TEXT PRIMARY KEY CHECK (name <> ''),
    kind TEXT NOT NULL CHECK (kind IN ('system', 'user'))
);
CREATE TABLE IF NOT EXISTS messages (
    id TEXT PRIMARY KEY,
    thread_id TEXT NOT NULL,
    sender TEXT NOT NULL,
    subject TEXT NOT NULL,
    body TEXT NOT NULL,
    sent_at INTEGER NOT NULL,
    in_reply_to TEXT REFERENCES messages (id)
);
CREATE INDEX IF NOT EXISTS messages_by_thread ON messages (thread_id, sent_at);
CREATE INDEX IF NOT EXISTS messages_by_time ON messages (sent_at);
CREATE TABLE IF NOT EXISTS recipients (
    message_id TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('to', 'cc')),
    position INTEGER NOT NULL,
    address TEXT NOT NULL,
    PRIMARY KEY (message_id, kind, position)
);
CREATE TABLE IF NOT EXISTS message_labels (
    message_id TEXT NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
    label TEXT NOT NULL REFERENCES labels (name) ON UPDATE CASCADE ON DELETE CASCADE,
    PRIMARY KEY (message_id, label)
);
CREATE INDEX IF NOT EXISTS message_labels_by_label ON message_labels (label, message_id);
"""
