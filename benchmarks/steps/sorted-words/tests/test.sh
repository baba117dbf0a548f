#!/bin/sh
# The same for both steps; each brings its own wanted.txt. Nothing of the agent runs here.
# Right words count a half, and their right order the other half.
words=/workspace/words.txt
reward=0
if [ -f "$words" ] && [ "$(sort "$words")" = "$(cat /tests/wanted.txt)" ]; then
    reward=0.5
    cmp -s "$words" /tests/wanted.txt && reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
