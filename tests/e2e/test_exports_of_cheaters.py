"""What a trainer gets of rollouts whose tests the agent could steer, from every exporter."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchflow.cli.rollout import export
from benchflow_kernel import Registry

TASK = """name = "{name}"
[environment]
user = "root"
[verifier]
isolation = "twin"
"""
SOLVES = {
    "clean": "echo 42 > answer.txt",
    "suspicious": "echo 42 > answer.txt; touch conftest.py",
    "tampered": "ln -s /bin/true /usr/local/bin/grep",
}
CHECK = "if grep -qx 42 /workspace/answer.txt; then echo 1; else echo 0; fi"

Told = list[tuple[float, str | None]]
"""Each reward that is there to be trained on, and what is said of it."""


@pytest.fixture
def rollouts(bench: Any, tmp_path: Path) -> dict[str, Path]:
    """A rollout of each grade. All of their tests said 1."""
    for name, solve in SOLVES.items():
        for file, text in {
            "task.toml": TASK.format(name=name),
            "instruction.md": "Write the answer.\n",
            "solution/solve.sh": f"{solve}\n",
            "tests/test.sh": f"({CHECK}) > /logs/verifier/reward.txt\n",
        }.items():
            path = tmp_path / "tasks" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    job = bench("eval", "create", "--tasks-dir", "tasks", "--agent", "oracle", "--json")
    found = {record["task_id"].rpartition("/")[2]: record for record in job["records"]}
    said = {name: record["claimed"] or record["reward"] for name, record in found.items()}
    assert said == dict.fromkeys(SOLVES, 1), job
    assert {name: record["integrity"] for name, record in found.items()} == {n: n for n in SOLVES}
    return {n: tmp_path / job["directory"] / record["rollout_id"] for n, record in found.items()}


def of_rows(output: Path) -> Told:
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return [(row["reward"], row["info"]["reward_metadata"]["integrity"]) for row in rows]


def of_messages(output: Path) -> Told:
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return [(row["reward"], row["integrity"]) for row in rows]


def of_adp(output: Path) -> Told:
    rows = [json.loads(line)["details"] for line in output.read_text().splitlines()]
    return [(row["reward"], row["integrity"]) for row in rows]


def of_traces(traces: list[dict[str, Any]]) -> Told:
    told: Told = []
    for trace in traces:
        grades = trace["info"]["benchflow"]["integrity"]
        for grade in grades.values() if isinstance(grades, dict) else [grades]:
            told.append((trace["rewards"]["reward"]["score"], grade))
    return told


def of_episodes(output: Path) -> Told:
    episodes = [json.loads(line) for line in output.read_text().splitlines()]
    return of_traces([trace for one in episodes for trace in one["traces"]])


def of_flat(output: Path) -> Told:
    return of_traces([json.loads(line) for line in output.read_text().splitlines()])


def of_trials(output: Path) -> Told:
    told: Told = []
    for home in (path.parent for path in output.glob("*/result.json")):
        result = json.loads((home / "result.json").read_text())
        verdict = result["verifier_result"]
        assert (home / "verifier" / "reward.json").exists() == (verdict is not None)
        if verdict is not None:
            grade = result["agent_result"]["metadata"]["benchflow"]["integrity"]
            told.append((verdict["rewards"]["reward"], grade))
    (counted,) = json.loads((output / "result.json").read_text())["stats"]["evals"].values()
    assert (counted["metrics"] != []) == (told != [])
    return told


def of_logs(output: Path) -> Told:
    told: Told = []
    for log in output.glob("*.eval"):
        with zipfile.ZipFile(log) as file:
            names = [name for name in file.namelist() if name.startswith("samples/")]
            samples = [json.loads(file.read(name)) for name in names]
        for sample in samples:
            for score in (sample["scores"] or {}).values():
                told.append((score["value"], score["metadata"]["benchflow"]["integrity"]))
    return told


READERS: dict[str, Callable[[Path], Told]] = {
    "verifiers": of_rows,
    "sft": of_rows,
    "adp": of_adp,
    "messages": of_messages,
    "v1-leaves": of_episodes,
    "v1-graph": of_episodes,
    "v1-flat": of_flat,
    "harbor": of_trials,
    "inspect": of_logs,
}
DIRECTORIES = {"harbor", "inspect"}
"""Formats of several files."""


OF_TOKENS = {"agent-lightning", "art", "atropos", "tinker"}
"""Formats without leaves that have no tokens: `test_trainer_hazards.py` reads them."""


def test_every_exporter_that_ships_is_read_here() -> None:
    assert set(READERS) | OF_TOKENS == set(Registry().names("benchflow.exporters"))


def test_a_reward_that_was_tampered_with_is_in_no_export_and_a_suspicious_one_says_so(
    rollouts: dict[str, Path], tmp_path: Path
) -> None:
    for form, read in READERS.items():
        told = {}
        for name, rollout in rollouts.items():
            output = tmp_path / form / (name if form in DIRECTORIES else f"{name}.jsonl")
            output.parent.mkdir(exist_ok=True)
            export(str(rollout), output=output, format=form)
            told[name] = read(output)
        assert told == {
            "clean": [(1.0, "clean")],
            "suspicious": [(1.0, "suspicious")],
            "tampered": [],
        }, form
