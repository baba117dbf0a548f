# attempt: write reward.txt before the tests run
# stopped: the verifier's logs are made anew
mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt
