# attempt: mount a directory of the agent's over the tests' and the logs'
# stopped: a box has no right to mount; mounts are in no snapshot
mkdir -p "$HOME/t" /tests /logs/verifier; echo 1 > "$HOME/t/reward.txt"
printf 'echo 1 > /logs/verifier/reward.txt\n' > "$HOME/t/test.sh"
for d in /tests /logs/verifier; do mount --bind "$HOME/t" $d; done
