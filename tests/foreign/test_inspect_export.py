"""Inspect's own package reads the logs that we write without it."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from benchflow_adapters_inspect.export import InspectExporter
from benchflow_contracts import FinishedRollout, RolloutTree
from benchflow_testing.fakes import fake_finished_rollout, fake_hostile_rollout
from inspect_judge import PROGRAMS, inspect_python, judge_environment, run_inspect, run_program
from made_trees import tree_of_all_kinds, tree_of_climbs

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]


def test_inspect_reads_every_value_and_each_fork_as_branches(tmp_path: Path) -> None:
    read = _read(tmp_path, fake_finished_rollout("a"), fake_finished_rollout("b"))
    assert read["lost"] == []
    assert all(read["rewritten"])
    assert [epoch for _, epoch in read["epochs"]] == [1, 2, 3, 4, 5, 6]
    assert read["scores"] == [{}, {"reward": 1.0}, {"reward": 0.5}] * 2
    assert read["errors"] == [True, False, False] * 2
    assert read["metrics"]["reward"]["mean"] == 0.75
    assert read["summaries"] == 6
    anchors = [[branch[0] for branch in each] for each in read["branches"]]
    assert [len(each) for each in anchors] == [2, 0, 0, 2, 0, 0]


def test_inspect_reads_hostile_texts_as_they_were_written(tmp_path: Path) -> None:
    read = _read(tmp_path, fake_hostile_rollout())
    assert read["lost"] == []
    assert all(read["rewritten"])


def test_forks_below_forks_are_branches_inside_branches(tmp_path: Path) -> None:
    # n1 has the children n2 and n5; n2 has the leaves n3 and n4, and n5 the leaves n6 and n7.
    tree = tree_of_climbs([0, 0, 0, 1, 2, 0, 1])
    (branches, *others) = _read(tmp_path, _finished(tree))["branches"]
    places = [[anchor, name, [each[:2] for each in inner]] for anchor, name, _, inner in branches]
    assert places == [["n1", "n5", [["n5", "n7"]]], ["n2", "n4", []]]
    assert others == [[], [], []]


def test_inspect_reads_lost_and_failed_children_and_a_failed_rollout(tmp_path: Path) -> None:
    read = _read(tmp_path, _finished(tree_of_all_kinds()))
    assert read["lost"] == []
    assert len(read["epochs"]) == 3


def test_inspect_view_serves_the_log_and_its_samples(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    InspectExporter().export("job", iter([fake_finished_rollout()]), logs)
    (path,) = logs.glob("*.eval")
    with _viewer(tmp_path) as client:
        names = [each["name"] for each in client.get("/api/log-files").json()["files"]]
        assert [Path(name).name for name in names] == [path.name]
        log = client.get(f"/api/logs/{quote(names[0], safe='')}").json()
        assert log["status"] == "success"
        assert len(log["samples"]) == 3
        assert client.get("/").status_code == 200


def test_inspect_view_bundles_the_log(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    InspectExporter().export("job", iter([fake_finished_rollout()]), logs)
    done = run_inspect(
        tmp_path, "-m", "inspect_ai", "view", "bundle", "--log-dir", logs,
        "--output-dir", tmp_path / "bundle", with_benchflow=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    listing = json.loads((tmp_path / "bundle" / "logs" / "listing.json").read_text())
    assert [entry["status"] for entry in listing.values()] == ["success"]


def test_a_log_of_inspect_is_scored_here_and_exported_in_other_formats(tmp_path: Path) -> None:
    shutil.copy(PROGRAMS / "word_task.py", tmp_path)
    done = run_inspect(
        tmp_path, "-m", "inspect_ai", "eval", "word_task.py@words", "--model", "none/none"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = (tmp_path / "logs").glob("*.eval")
    facts = run_program(tmp_path, "import_log.py", log)
    assert facts["rewards"] == [1.0, 1.0]
    assert facts["prompts"] == ["Write the two words to answer.txt."] * 2
    assert facts["messages"] == ["wrote bluegreen"] * 2
    assert facts["scored_again"] == [1.0, 1.0]
    assert (facts["own_rows"], facts["sft_rows"]) == (-1, 2)
    assert facts["token_rows"] == 0
    program = "from benchflow.cli import main; main()"
    done = run_inspect(
        tmp_path, "-c", program, "rollout", "import", log, "--format", "inspect", "--json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads(done.stdout)
    assert [(record["task_id"], record["reward"]) for record in records] == [
        ("words/sample-1", 1.0),
        ("words/sample-2", 1.0),
    ]


@contextmanager
def _viewer(directory: Path) -> Generator[httpx.Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [inspect_python(), "-m", "inspect_ai", "view", "start", "--log-dir", "logs",
         "--port", str(port)],
        cwd=directory, env=judge_environment(directory, with_benchflow=False),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            until = time.monotonic() + 60
            while True:
                try:
                    client.get("/api/log-dir")
                    break
                except httpx.TransportError:
                    assert time.monotonic() < until, "inspect view did not start"
                    assert server.poll() is None, "inspect view ended"
                    time.sleep(0.1)
            yield client
    finally:
        server.kill()
        server.wait()


def _finished(tree: RolloutTree) -> FinishedRollout:
    return FinishedRollout(
        tree=tree, task_digest="sha256:0", instruction="Do it.", agent="scripted", model=None,
        sandbox="local", finished_at=10.0,
    )  # fmt: skip


def _read(directory: Path, *rollouts: FinishedRollout) -> dict[str, Any]:
    InspectExporter().export("job", iter(rollouts), directory)
    (path,) = directory.glob("*.eval")
    result: dict[str, Any] = run_program(directory, "read_log.py", path, with_benchflow=False)
    return result
