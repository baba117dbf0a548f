"""How a cluster of this machine is started, with a program in place of Ray."""

import asyncio
import json
import logging
from pathlib import Path

import pytest
from benchflow_jobs_ray import LocalCluster, RayStartError, cluster

_PROGRAM = """
import json, pathlib, sys
starts = pathlib.Path(__file__).with_name("starts")
count = len(starts.read_text()) if starts.exists() else 0
starts.write_text("s" * (count + 1))
answers = json.loads(pathlib.Path(__file__).with_name("answers").read_text())
for line in sys.stdin:
    answer = answers[count]
    if answer is not None:
        print(json.dumps(answer), flush=True)
"""


class Program:
    """Answers each request of its first start with the first answer, and so on.

    `None` gives no answer.
    """

    def __init__(self, directory: Path, *answers: dict[str, object] | None) -> None:
        self._directory = directory
        (directory / "in_place_of_ray.py").write_text(_PROGRAM)
        (directory / "answers").write_text(json.dumps(answers))

    @property
    def starts(self) -> int:
        return len((self._directory / "starts").read_text())


@pytest.fixture(autouse=True)
def _use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster, "_PROGRAM", "in_place_of_ray")
    monkeypatch.setattr(cluster, "_PAUSE_SEC", 0.01)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


def start(**options: float) -> str:
    async def run() -> str:
        async with asyncio.timeout(50), LocalCluster([{"benchflow": 1}], **options) as started:
            return started.address

    return asyncio.run(run())


def test_a_start_that_failed_is_tried_once_more(tmp_path: Path) -> None:
    program = Program(tmp_path, {"error": "no port"}, {"node": 0, "pid": 1, "address": "host:1"})
    assert start() == "host:1"
    assert program.starts == 2


def test_two_failed_starts_are_an_error_with_both_causes(tmp_path: Path) -> None:
    program = Program(tmp_path, {"error": "no port"}, {"error": "no memory"})
    with pytest.raises(RayStartError) as error:
        start()
    assert str(error.value) == (
        "Ray did not start in 2 attempts: "
        "a node did not start: no port; then: a node did not start: no memory"
    )
    assert program.starts == 2


def test_a_program_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    Program(tmp_path, None, None)
    with pytest.raises(RayStartError, match=r"a node did not start within 0\.2 s$"):
        start(start_sec=0.2)


def test_a_start_waits_while_the_machine_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = Program(tmp_path, {"node": 0, "pid": 1, "address": "host:1"})
    loads = iter([90.0, 80.0, 1.0])
    monkeypatch.setattr("os.getloadavg", lambda: (next(loads), 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with caplog.at_level(logging.WARNING):
        assert start() == "host:1"
    assert [each.split(": ")[1] for each in caplog.messages] == [
        "the load is 90 on 2 cores",
        "the load is 80 on 2 cores",
    ]
    assert program.starts == 1


def test_a_machine_that_stays_busy_is_an_error_with_its_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (90.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(RayStartError, match=r"did not start: the load is 90 on 2 cores, after"):
        start(idle_sec=0.05)
    assert not (tmp_path / "starts").exists()
