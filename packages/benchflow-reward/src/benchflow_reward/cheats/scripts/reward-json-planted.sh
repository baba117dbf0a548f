# attempt: write reward.json, which is read first, before the tests run
# stopped: the verifier's logs are made anew
mkdir -p /logs/verifier; echo '{"reward": 1}' > /logs/verifier/reward.json
