"""Print what a cluster needs: `python -m benchflow_sandbox_kubernetes | kubectl apply -f -`."""

import sys
from importlib.resources import files

sys.stdout.write((files("benchflow_sandbox_kubernetes") / "install.yaml").read_text())
