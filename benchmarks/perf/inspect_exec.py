"""What Inspect's interface adds to a command and a file in our sandbox.

One process, with Inspect's package and ours, runs the same command by turns: in the bare sandbox,
through Inspect's interface over the same sandbox, and in Inspect's own sandboxes. Times are wall
milliseconds. The goal for the interface is at most 10 ms a call over the bare sandbox.

One JSON line per bench on stdout. `inspect_exec.py PROVIDER [IMAGE]`; with an image, Inspect's own
Docker sandbox runs the same image.
"""

import json
import sys
import tempfile
from pathlib import Path

from inspect_judge import run_inspect
from report import emit

HERE = Path(__file__).resolve().parent
BOUND_MS = 10.0


def main() -> None:
    """Run the program in Inspect's environment, and report its figures."""
    with tempfile.TemporaryDirectory() as name:
        done = run_inspect(Path(name), HERE / "peer_inspect_exec.py", *sys.argv[1:], timeout=900)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    times = json.loads(done.stdout.splitlines()[-1])
    bare = times["bare exec"]
    for bench, samples in times.items():
        emit(f"inspect: {bench}", samples)
    added = [ours - own for ours, own in zip(times["our exec"], bare, strict=True)]
    emit("inspect: our exec over the bare sandbox", added, limit=BOUND_MS)


if __name__ == "__main__":
    main()
