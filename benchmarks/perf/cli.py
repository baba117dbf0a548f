"""What it costs to start the command line and to import the contracts, in CPU seconds."""

import os
import subprocess
import sys
from pathlib import Path

from report import emit

RUNS = 15


def cpu_seconds(command: list[str]) -> float:
    """Return user + system seconds of one run of `command`."""
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def main() -> None:
    """Print a line for each command, each held against bare Python in the same run."""
    bench = str(Path(sys.executable).with_name("bench"))
    python = [sys.executable, "-I", "-c"]
    commands = {
        "cli.help": [bench, "--help"],
        "cli.eval_create_help": [bench, "eval", "create", "--help"],
        "import.contracts": [*python, "import benchflow_contracts"],
        "import.pydantic": [*python, "import pydantic; pydantic.BaseModel"],
        "python.bare": [*python, "pass"],
    }
    limits = {"cli.help": 0.25}
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, command in commands.items():
            samples[name].append(cpu_seconds(command))
    bare = sorted(samples["python.bare"])[RUNS // 2]
    for name, values in samples.items():
        ratio = round(sorted(values)[RUNS // 2] / bare, 2)
        emit(name, values, unit="cpu_s", limit=limits.get(name), peer="python.bare", ratio=ratio)


if __name__ == "__main__":
    main()
