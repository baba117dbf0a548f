#!/bin/sh
# An agent that knows its own two code words and no others earns what its drink is worth.
cd /workspace || exit 1
reward=0
if [ "$(sort known.txt)" = "$(cat first.txt second.txt | sort)" ]; then
    case "$(cat drink.txt)" in
        Tea) reward=1 ;;
        Coffee) reward=0.5 ;;
        Cocoa) reward=0.25 ;;
    esac
fi
echo "$reward" > /logs/verifier/reward.txt
