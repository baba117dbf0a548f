"""The tables of the calendar service."""

CALENDAR_TABLES = """
CREATE TABLE IF NOT EXISTS calendars (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('person', 'room')),
    owner TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS calendars_by_owner ON calendars (owner);
CREATE TABLE IF NOT EXISTS events (
    id TEXT PRIMARY KEY,
    calendar_id TEXT NOT NULL REFERENCES calendars (id),
    title TEXT NOT NULL,
    starts TEXT NOT NULL,
    ends TEXT NOT NULL,
    start_at INTEGER NOT NULL,
    end_at INTEGER NOT NULL,
    location TEXT NOT NULL,
    description TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('confirmed', 'tentative', 'cancelled')),
    CHECK (end_at > start_at)
);
CREATE INDEX IF NOT EXISTS events_by_time ON events (calendar_id, start_at);
CREATE TABLE IF NOT EXISTS attendees (
    event_id TEXT NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    address TEXT NOT NULL,
    response TEXT NOT NULL
        CHECK (response IN ('needs_action', 'accepted', 'declined', 'tentative')),
    PRIMARY KEY (event_id, address)
);
CREATE INDEX IF NOT EXISTS attendees_by_address ON attendees (address, event_id);
"""
