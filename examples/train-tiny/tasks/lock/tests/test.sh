#!/bin/sh
# The reward is the share of digits that were right: 0, 0.25, 0.5, 0.75 or 1.
state=$(cat /workspace/lock 2>/dev/null || echo "right 0")
case "${state#* }" in
    4) echo 1 ;;
    3) echo 0.75 ;;
    2) echo 0.5 ;;
    1) echo 0.25 ;;
    *) echo 0 ;;
esac > /logs/verifier/reward.txt
