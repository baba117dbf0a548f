#!/bin/sh
# The second mail moves the start to 4 pm. New York changed its clocks on 8 March: UTC-4.
set -eu
claw-gmail thread thr-10
claw-gcal create \
    --title "Brightwater kickoff" \
    --start 2026-03-24T16:00:00-04:00 \
    --end 2026-03-24T16:45:00-04:00 \
    --location https://meet.brightwater.example/kickoff-7 \
    --attendee colin.hart@brightwater.example \
    --attendee priya@harborlight.example
