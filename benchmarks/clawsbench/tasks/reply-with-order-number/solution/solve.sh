#!/bin/sh
# The February order was cancelled and entered again: the later number is the valid one.
set -eu
claw-gmail thread thr-11
claw-gmail send --reply-to msg-18 --body "Dear Ines,

please quote HL-20458 for the 40 enamel mugs.

Mara"
