"""The workflows run what `.ci/run` runs, for every package, with few rights and fixed actions.

Nobody has run the workflows: these tests and a check of their syntax are all that stands for them.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text()) for path in ROOT.glob(".github/workflows/*.yml")
}
ACTIONS = sorted(ROOT.glob(".github/actions/*/action.yml"))
PACKAGES = {
    tomllib.loads(path.read_text())["project"]["name"] for path in ROOT.glob("*/*/pyproject.toml")
}
JOBS = {
    f"{name}:{job}": body
    for name, workflow in WORKFLOWS.items()
    for job, body in workflow["jobs"].items()
}


def python(*args: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, *args], {**os.environ, "CI": "true"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def refusal(*sessions: str) -> str:
    """Return what nox says of sessions that it does not have, and nothing of those that it has."""
    done = python("-m", "nox", "--list", "--json", "--sessions", *sessions)
    return done.stderr if done.returncode else ""


@pytest.fixture(scope="module")
def outputs() -> dict[str, list[str]]:
    done = python("-m", "nox", "--sessions", "matrix")
    assert done.returncode == 0, done.stderr
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {name: json.loads(value) for name, _, value in pairs}


def steps() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each step with the name of its job, and the job."""
    for name, job in JOBS.items():
        for step in job.get("steps", []):
            yield name, job, step
    for path in ACTIONS:
        for step in yaml.safe_load(path.read_text())["runs"]["steps"]:
            yield path.parent.name, {}, step


def sessions_of(job: dict[str, Any], outputs: dict[str, list[str]]) -> list[str]:
    """Return the values of `matrix.session`: written in the job, or the output of a job before."""
    matrix = job["strategy"]["matrix"]
    if "include" in matrix:
        return [entry["session"] for entry in matrix["include"]]
    found = re.fullmatch(r"\$\{\{ fromJSON\(needs\.list\.outputs\.(\w+)\) \}\}", matrix["session"])
    assert found, matrix
    return outputs[found[1]]


def test_each_command_that_runs_nox_names_sessions_that_nox_has(outputs):
    named: list[str] = []
    for _, job, step in steps():
        words = shlex.split(step.get("run", ""))
        if "nox" not in words:
            continue
        assert words[0] == "./run", words
        session = words[words.index("-s") + 1]
        if session == "$SESSION":
            assert step["env"] == {"SESSION": "${{ matrix.session }}"}
            named += sessions_of(job, outputs)
        else:
            named.append(session)
    assert {"matrix", "release", "lint"} < set(named)
    assert not refusal(*named)
    assert "no-such-session" in refusal(*named, "no-such-session")


def test_every_package_is_tested_and_published(outputs):
    tested = {re.findall(r"package='([^']+)'", name)[0] for name in outputs["sessions"]}
    assert tested == PACKAGES == set(outputs["packages"])
    assert JOBS["ci.yml:list"]["outputs"]["sessions"] == "${{ steps.matrix.outputs.sessions }}"
    assert JOBS["release.yml:publish"]["strategy"]["matrix"] == {
        "package": "${{ fromJSON(needs.build.outputs.packages) }}"
    }


def test_the_workflow_runs_the_sessions_of_the_lanes(outputs):
    done = python("-c", "import json, noxfile; print(json.dumps(noxfile.LANES))")
    lanes = json.loads(done.stdout)
    run = {
        name for job in ("unit", "check") for name in sessions_of(JOBS[f"ci.yml:{job}"], outputs)
    }
    # A lane has the slow tests in parts, and most packages in one process of each Python.
    apart = {name for name in chain(*lanes.values()) if not name.startswith("together-")}
    wanted = {name.partition("(part=")[0] for name in apart}
    assert wanted <= run
    assert {name.partition("-")[0] for name in run} == {name.partition("-")[0] for name in wanted}


def test_every_script_that_a_step_runs_is_there():
    commands = [step["run"] for *_, step in steps() if "run" in step]
    scripts = {word for text in commands for word in re.findall(r"(?:\./run|\.ci/\w+)", text)}
    assert {"./run", ".ci/install"} <= scripts
    assert not [script for script in scripts if not os.access(ROOT / script, os.X_OK)]


def test_every_file_that_a_step_names_is_there():
    texts = [" ".join([step.get("run", ""), *step.get("env", {}).values()]) for *_, step in steps()]
    named = re.findall(r"(?<![\w/])(?:\.github|examples|packages|tests)/[\w./-]+", " ".join(texts))
    assert {"examples/train-tiny/tasks/lock", ".github/kind.yaml"} <= set(named)
    assert not [path for path in named if not (ROOT / path).exists()]


def test_each_workflow_says_that_it_was_never_run():
    texts = {path.name: path.read_text() for path in ROOT.glob(".github/workflows/*.yml")}
    beginnings = {name: " ".join(text.split("\nname:")[0].split()) for name, text in texts.items()}
    assert not [name for name, text in beginnings.items() if "never run" not in text]


def test_the_pods_of_the_cluster_are_not_on_the_node_of_the_api_server():
    cluster = yaml.safe_load((ROOT / ".github/kind.yaml").read_text())
    assert {node["role"] for node in cluster["nodes"]} == {"control-plane", "worker"}
    assert cluster["networking"]["disableDefaultCNI"] is True


def test_an_action_of_others_is_fixed_to_a_commit_with_its_version_beside():
    text = "".join(p.read_text() for p in [*ROOT.glob(".github/workflows/*.yml"), *ACTIONS])
    used = re.findall(r"uses: (.+)", text)
    assert used
    for action in used:
        assert re.fullmatch(r"\./\.github/\S+|[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)


@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_job_ends_in_time_and_has_few_rights(name):
    workflow, job = WORKFLOWS[name.partition(":")[0]], JOBS[name]
    assert "timeout-minutes" in job or "uses" in job
    rights = job.get("permissions", workflow["permissions"])
    assert rights in ({}, {"contents": "read"}, {"id-token": "write"})
    assert ("id-token" in rights) == (name == "release.yml:publish")


def test_no_expression_is_part_of_a_command():
    assert not [step["run"] for *_, step in steps() if "${{" in step.get("run", "")]


def test_a_tag_that_is_not_the_version_builds_nothing():
    done = python("-m", "nox", "--sessions", "release", "--", "v0.0.0")
    assert done.returncode == 1
    assert "the tag is ['v0.0.0'], the packages have version" in done.stderr


def test_the_hooks_run_the_commands_of_lint():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = {hook["entry"] for repo in config["repos"] for hook in repo["hooks"]}
    nodes = ast.walk(ast.parse((ROOT / "noxfile.py").read_text()))
    lint = next(n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == "lint")
    commands = {
        " ".join(["./run", *(argument.value for argument in call.args)])
        for call in ast.walk(lint)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "session.run"
    }
    assert hooks == commands
