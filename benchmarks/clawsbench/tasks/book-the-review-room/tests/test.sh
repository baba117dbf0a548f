#!/bin/sh
# Grades the office as it was left: see check.py. Nothing of the agent runs here.
exec python3 -I -B "$(dirname "$0")/check.py"
