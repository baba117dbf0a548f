#!/bin/sh
# The receipts come from the same address: what tells the letters apart is their series.
set -eu
claw-gmail list --label inbox --from hello@paperboat.example --subject "Paperboat Weekly #" |
    python3 -I -c 'import json, sys
for message in json.load(sys.stdin)["messages"]:
    print(message["id"])' |
    while read -r id; do
        claw-gmail modify "$id" --remove inbox
    done
