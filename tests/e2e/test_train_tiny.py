"""The task of the example that trains a tiny model: its rewards are those of its state machine."""

import asyncio
import runpy
import shutil
import subprocess
from itertools import product
from pathlib import Path

import benchflow
import pytest

TASK = Path(__file__).parents[2] / "examples" / "train-tiny" / "tasks" / "lock"


@pytest.mark.parametrize(
    ("digits", "reward"),
    [("1 0 1", 1.0), ("1 0 0", 0.6667), ("1 1 0 1", 0.3333), ("0 1 0 1", 0.0), ("", 0.0)],
)
def test_the_lock_pays_for_each_digit_before_the_first_wrong_one(
    tmp_path: Path, digits: str, reward: float
) -> None:
    copy = tmp_path / "lock"
    shutil.copytree(TASK, copy)
    script = f"#!/bin/sh\nfor digit in {digits}; do dial $digit; done\n"
    (copy / "solution/solve.sh").write_text(script)
    result = asyncio.run(benchflow.run(copy, agent="oracle"))
    assert result.record.error is None
    assert result.reward == reward


def test_the_simulated_lock_has_the_states_of_the_program(tmp_path: Path) -> None:
    program = (TASK / "environment/files/usr/local/bin/dial").read_text()
    dial = tmp_path / "dial"
    dial.write_text(program.replace("/workspace/lock", str(tmp_path / "lock")))
    simulated = runpy.run_path(str(TASK.parents[1] / "lock.py"))["Lock"]
    for digits in product("01", repeat=4):
        (tmp_path / "lock").unlink(missing_ok=True)
        lock = simulated()
        script = "; ".join(f"sh {dial} {digit}" for digit in digits)
        shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        assert shown.stdout.split("\n")[:-1] == [lock.dial(digit) for digit in digits]
