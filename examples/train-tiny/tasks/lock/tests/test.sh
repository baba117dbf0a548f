#!/bin/sh
# The reward is the share of digits that were right: 0, 1/3, 2/3 or 1.
state="right 0"
[ -f /workspace/lock ] && read -r state < /workspace/lock
case "${state#* }" in
    3) echo 1 ;;
    2) echo 0.6667 ;;
    1) echo 0.3333 ;;
    *) echo 0 ;;
esac > /logs/verifier/reward.txt
