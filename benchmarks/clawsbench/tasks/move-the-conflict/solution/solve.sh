#!/bin/sh
# Asks when all three are busy, takes the first gap of 45 minutes on a quarter hour.
set -eu
start=$(claw-gcal busy --start 2026-03-19T09:00:00+00:00 --end 2026-03-19T17:00:00+00:00 \
    --address mara@harborlight.example \
    --address priya@harborlight.example \
    --address tomas@harborlight.example |
    python3 -I -c 'import json, sys
from datetime import datetime, timedelta
reply = json.load(sys.stdin)
spans = [
    (datetime.fromisoformat(each["start"]), datetime.fromisoformat(each["end"]))
    for person in reply["busy"].values()
    for each in person
]
at, length = datetime.fromisoformat(reply["start"]), timedelta(minutes=45)
while any(start < at + length and end > at for start, end in spans):
    at += timedelta(minutes=15)
print(at.isoformat(), (at + length).isoformat())')
claw-gcal update evt-11 --start "${start% *}" --end "${start#* }"
