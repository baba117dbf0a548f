"""`bench job run --backend http` over two server processes: one is killed, nothing is lost."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from benchflow_contracts import VerifyResult
from benchflow_engine.scaffold import write_task
from benchflow_jobs.planning import JobSource, parse_job
from benchflow_jobs.runner import run_job
from benchflow_store import read_groups
from benchflow_store.database import JobReader
from dispatch_server import TOKEN, DispatchServer
from waiting_sandboxes import PLACE

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DispatchServer]]:
    monkeypatch.setenv("BENCHFLOW_SERVE_TOKEN", TOKEN)
    monkeypatch.setenv(PLACE, str(tmp_path / "marks"))
    (tmp_path / "marks").mkdir()
    servers = [DispatchServer(tmp_path / f"serve{number}", slots=2) for number in range(2)]
    for each in servers:
        each.start()
    yield servers
    for each in servers:
        each.kill()


class Places:
    """A group reward, which this process applies: the place of each leaf."""

    name = "places"

    async def score_group(self, task: object, leaves: Sequence[object]) -> list[VerifyResult]:
        del task
        return [VerifyResult(reward=float(place)) for place, _ in enumerate(leaves, 1)]


def test_a_job_whose_server_is_killed_scores_each_slot_once(
    servers: list[DispatchServer], tmp_path: Path
) -> None:
    marks, bucket = tmp_path / "marks", tmp_path / "bucket"
    bucket.mkdir()
    for name in ("one", "two", "three"):
        write_task(tmp_path / "tasks" / name)
    config = {
        "job": {"name": "far", "jobs_dir": str(tmp_path)},
        "dataset": {"paths": [str(tmp_path / "tasks")]},
        "run": {
            "agent": {"name": "nop"},
            "sandbox": {"import_path": "waiting_sandboxes:WaitingSandboxes"},
            "reward": {"group_import_path": f"{__name__}:Places"},
        },
        "design": {"replications": 2},
        "retry": {"pauses_sec": [0]},
        "evidence": {"url": bucket.as_uri()},
        "backend": {
            "name": "http",
            "options": {"servers": [each.url for each in servers], "lease_sec": 2},
        },
    }

    async def kill() -> None:
        async with asyncio.timeout(60):
            while len([*marks.iterdir()]) < 4:  # noqa: ASYNC110 - files of another process
                await asyncio.sleep(0.02)
        servers[1].kill()
        (marks / "go").touch()

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(kill())
            report = await run_job(parse_job(JobSource(config)))
        assert report.complete
        assert [each.reward for each in report.records] == [1.0] * 6
        for record in report.records:
            home = tmp_path / "far" / record.rollout_id
            assert json.loads((home / "result.json").read_text())["reward"] == 1

    asyncio.run(scenario())
    groups = read_groups(tmp_path / "far")
    assert [[each.result.reward for each in group.leaves] for group in groups] == [[1, 2]] * 3
    assert [group.lost for group in groups] == [()] * 3
    with JobReader(tmp_path / "far" / "record.db") as reader:
        assert reader.check_integrity() == []
        assert reader.contradictions() == []
        attempts = list(reader.attempts())
    assert sorted(each.index for each in attempts if each.counted) == list(range(6))
    lost = {each.rollout for each in attempts if each.status == "lost"}
    on_killed = {mark.stem for mark in marks.glob(f"*.{servers[1].pid}")}
    assert len(on_killed) == 2
    assert lost == on_killed
    assert not any(each.duplicate for each in attempts)
