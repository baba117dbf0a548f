"""How soon a program starts in a twin, against the agent's own box: a test with a short window.

The task's test starts a Python program, interrupts it after half a second, and wants what it
printed. Its solution has run that program before. Each sample is a rollout of its own, by the
oracle, of Harbor's protocol: the time from the start of the program to its first line, which is
9,000 ms where there was none. `passed` is how many of the runs passed.

    export BENCHFLOW_DOCKER_IMAGE=$(.ci/docker)
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import emit

IMAGE = os.environ["BENCHFLOW_DOCKER_IMAGE"]
PROGRAM = """import asyncio, http.client, json, sys, time, unittest
print(time.time(), flush=True)
async def work():
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaned", flush=True)
asyncio.run(work())
"""
TEST = """#!/bin/sh
began=$(date +%s.%N)
timeout -s INT 0.5 python3 /srv/program.py > /tmp/printed 2> /tmp/errors
first=$(head -n 1 /tmp/printed)
grep -qx cleaned /tmp/printed && passed=1 || passed=0
python3 - "$began" "${first:-0}" "$passed" > /logs/verifier/reward.json << 'END'
import json, sys
began, first, passed = map(float, sys.argv[1:])
print(json.dumps({"reward": passed, "seconds": first - began if first else 9.0}))
END
"""
SOLVE = """#!/bin/sh
mkdir -p /srv
cat > /srv/program.py << 'END'
{program}END
timeout -s INT 3 python3 /srv/program.py
true
"""
FILES = {
    "task.toml": "",
    "instruction.md": "Write /srv/program.py.\n",
    "environment/Dockerfile": f"FROM {IMAGE}\n",
    "solution/solve.sh": SOLVE.format(program=PROGRAM),
    "tests/test.sh": TEST,
}


def samples(home: Path, sandbox: str, isolation: str, runs: int) -> list[dict[str, float]]:
    """Return what the tests wrote in each of `runs` rollouts."""
    task = home / "window"
    for name, text in FILES.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    name = f"{sandbox}-{isolation}"
    bench = str(Path(sys.executable).with_name("bench"))
    command = [bench, "eval", "create", "--tasks-dir", str(task), "--agent", "oracle"]
    command += ["--sandbox", sandbox, "--isolation", isolation, "--repeats", str(runs)]
    command += ["--concurrency", "1", "--jobs-dir", str(home), "--job-name", name, "--quiet"]
    command += ["--offline"] if sandbox == "local" else []
    subprocess.run(command, check=False, capture_output=True)
    found = [json.loads(path.read_text()) for path in home.glob(f"{name}/*/verifier/reward.json")]
    if len(found) != runs:
        sys.exit(f"{name}: {len(found)} of {runs} rollouts came to a verdict")
    return found


def main() -> None:
    """Run the task in both designs, on the sandboxes that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sandboxes", nargs="*", default=["docker", "local"])
    parser.add_argument("--runs", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for sandbox in chosen.sandboxes:
            for isolation in ("shared", "twin"):
                found = samples(Path(directory), sandbox, isolation, chosen.runs)
                passed = sum(each["reward"] for each in found)
                times = [each["seconds"] * 1000 for each in found]
                emit(f"first_output/{sandbox}/{isolation}", times, passed=int(passed))


if __name__ == "__main__":
    main()
