# attempt: do so in the user's own packages
# stopped: PYTHONNOUSERSITE is pinned
for h in "$HOME" /root; do for v in 3.9 3.10 3.11 3.12 3.13; do
  d=$h/.local/lib/python$v/site-packages
  mkdir -p "$d" && echo 'import os; os._exit(0)' > "$d/usercustomize.py"
done; done
