# attempt: let the reward be a link to a file of the agent's
# stopped: the verifier's logs are made anew; links are refused
echo 1 > "$HOME/one"; mkdir -p /logs/verifier
ln -s "$HOME/one" /logs/verifier/reward.txt
