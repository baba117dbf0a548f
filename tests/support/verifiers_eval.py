"""The `eval` command of verifiers 0.4, with the packages of this workspace beside it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

TASKSETS = Path(__file__).parent / "verifiers_tasksets"
EVAL = "from verifiers.v1.cli.eval.main import main; main()"


def evaluate(site: Path, home: Path, *words: object, **variables: str) -> list[dict[str, Any]]:
    """Run verifiers' `eval` with both packages in one environment; return its episodes."""
    words = (*words, "--no-push", "--output-dir", home, "--run.dir", "run")
    done = subprocess.run(
        [sys.executable, "-c", EVAL, *map(str, words)],
        cwd=home,
        env={
            **os.environ,
            "PYTHONPATH": f"{site}:{TASKSETS}",
            "HF_HUB_OFFLINE": "1",
            "KEY": "none",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = (home / "run" / "traces.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
