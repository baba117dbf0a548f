# attempt: let the verifier's log directory be one of the agent's
# stopped: the verifier's logs are made anew
mkdir -p "$HOME/logs/verifier"; echo 1 > "$HOME/logs/verifier/reward.txt"
rm -rf /logs; ln -s "$HOME/logs" /logs
