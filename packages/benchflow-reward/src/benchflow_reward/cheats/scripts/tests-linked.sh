# attempt: let /tests be a link to a directory of the agent's
# stopped: /tests is made anew
mkdir -p "$HOME/t"; rm -rf /tests; ln -s "$HOME/t" /tests
