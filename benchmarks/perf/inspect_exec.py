"""What Inspect's interface adds to a command and a file in our sandbox.

One process, with Inspect's package and ours, runs the same command by turns: in the bare sandbox,
through Inspect's interface over the same sandbox, and in Inspect's own sandboxes. Times are wall
milliseconds. The goal is at most 10 ms a call over the bare sandbox, and over Inspect's own Docker
sandbox of the same image.

One JSON line per bench on stdout. `inspect_exec.py [IMAGE]` measures local sandboxes, and Docker's
with the image (default: $BENCHFLOW_DOCKER_IMAGE, then not).
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from inspect_judge import run_inspect
from report import emit

HERE = Path(__file__).resolve().parent
BOUND_MS = 10.0


def main() -> None:
    """Run the program in Inspect's environment, and report its figures."""
    image = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("BENCHFLOW_DOCKER_IMAGE")
    measure("local", "200")
    if image:
        if "BENCHFLOW_COMPOSE" in os.environ:
            # Inspect's own Docker sandbox runs `docker compose`.
            os.environ.setdefault("DOCKER_CONFIG", os.environ["BENCHFLOW_COMPOSE"])
        measure("docker", "40", image)


def measure(provider: str, *args: str) -> None:
    """Report the figures of one provider."""
    with tempfile.TemporaryDirectory() as name:
        program = HERE / "peer_inspect_exec.py"
        done = run_inspect(Path(name), program, provider, *args, timeout=900)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    times = json.loads(done.stdout.splitlines()[-1])
    for bench, samples in times.items():
        emit(f"inspect, {provider}: {bench}", samples)
    for other in ("bare", "inspect's docker"):
        if f"{other} exec" in times:
            pairs = zip(times["our exec"], times[f"{other} exec"], strict=True)
            added = [ours - theirs for ours, theirs in pairs]
            emit(f"inspect, {provider}: our exec over {other} exec", added, limit=BOUND_MS)


if __name__ == "__main__":
    main()
