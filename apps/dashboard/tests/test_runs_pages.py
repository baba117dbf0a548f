"""The list of runs and the page of a job: what they show, and that the command line agrees."""

import asyncio
import json
import os
from base64 import urlsafe_b64encode
from pathlib import Path

import apsw
import pytest
from benchflow_contracts import Completion, RolloutRecord
from benchflow_dashboard import DashboardSettings, create_app, list_runs
from benchflow_dashboard.index import Index, reindex, update_index
from benchflow_jobs import read_job
from benchflow_store.database import Commit, JobReader, JobWriter, PlannedSlot, PlanRevision
from litestar.testing import TestClient

HUGE_PLACE = f"after={urlsafe_b64encode(b'[1' + b'0' * 320 + b',1]').decode()}"
ADDRESS = "http://127.0.0.1:8642"
XSS = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def record(name: str, task: str, reward: float | None, **fields: object) -> RolloutRecord:
    error = {"boundary": "agent", "type": "ModelError", "message": f"404 from {XSS}\nmore"}
    return RolloutRecord.model_validate(
        {
            "rollout_id": name,
            "task_id": task,
            "task_digest": "sha256:0",
            "agent": "oracle",
            "model": None,
            "sandbox": "local",
            "status": "failed" if reward is None else "completed",
            "reward": reward,
            "error": error if reward is None else None,
            "steps": 2,
            "leaves": 1,
            "scored": int(reward is not None),
            "finished_at": 1000.0,
            **fields,
        }
    )


def write_job(jobs: Path) -> None:
    """Write a job with a record: two scored slots, a failed one that was tried twice, one open."""
    slots = [PlannedSlot(f"t/{task}#0", "base", f"t/{task}", 0, "sha256:0") for task in "abcd"]
    attempts = [
        (0, 1, record("a__1", "t/a", 1.0, slot="t/a#0", attempt=1)),
        (1, 1, record("b__1", "t/b", 0.25, slot="t/b#0", attempt=1)),
        (2, 1, record("c__1", "t/c", None, slot="t/c#0", attempt=1)),
        (2, 2, record("c__2", "t/c", None, slot="t/c#0", attempt=2)),
    ]

    async def commit() -> None:
        async with JobWriter(jobs / "night" / "record.db", "night") as writer:
            state = await writer.begin(PlanRevision(config_digest="sha256:1"), slots)
            for index, attempt, each in attempts:
                completion = Completion(
                    job="night",
                    index=index,
                    slot=slots[index].name,
                    attempt=attempt,
                    epoch=state.epoch,
                    rollout=each.rollout_id,
                    status="scored" if each.reward is not None else "unscored",
                    record=each.model_dump(mode="json"),
                    error=each.error,
                )
                await writer.commit(Commit(completion, is_last=attempt == 2))

    (jobs / "night").mkdir(parents=True)
    asyncio.run(commit())
    (jobs / "night" / "summary.json").write_text(json.dumps({"planned": 4}))
    for _, _, each in attempts:
        directory = jobs / "night" / each.rollout_id
        directory.mkdir()
        (directory / "result.json").write_text(each.model_dump_json())


@pytest.fixture
def client(settings: DashboardSettings, jobs: Path):
    write_job(jobs)
    reindex(settings.index_path(), jobs)
    index = Index(settings.index_path(), jobs)
    with TestClient(create_app(settings, index=index), base_url=ADDRESS) as client:
        yield client


def test_the_list_counts_one_attempt_of_each_slot_and_says_why_one_has_no_score(client) -> None:
    page = client.get("/runs?job=night").text
    assert "3 of 4" in page
    assert "1 failed</a> (<a" in page
    assert "reward 0.625" in page
    assert "agent: 404 from &lt;script&gt;" in page
    assert "<script>alert" not in page
    assert "onerror=alert(1)>" not in page
    assert 'id="run-' in page
    assert "c__1" not in page
    every = client.get("/runs?attempts=all").text
    assert "c__1" in every
    assert ">replaced<" in every


def test_the_page_of_a_job_agrees_with_bench_eval_show(client, jobs: Path) -> None:
    report = read_job(jobs / "night")
    view = client.get("/api/v1/jobs/night").json()
    totals = view["totals"]
    assert view["job"]["planned"] == report.planned == 4
    assert view["finished"] == report.finished
    assert totals["scored"] == report.scored
    assert totals["mean"] == pytest.approx(report.mean_reward)
    assert totals["stderr"] == pytest.approx(report.stderr)
    assert totals["by_boundary"] == report.errors
    tasks = {row["task"]: (row["attempts"], row["scored"], row["mean"]) for row in view["tasks"]}
    assert tasks == {t.task_id: (t.attempts, t.scored, t.mean_reward) for t in report.tasks}
    assert [group["boundary"] for group in view["failures"]] == ["agent"]
    assert client.get("/jobs/night").status_code == 200
    assert "bench eval show night" in client.get("/jobs/night").text
    assert client.get("/jobs/nothing").status_code == 404


def test_the_command_and_the_api_show_the_page(client, settings: DashboardSettings) -> None:
    for query in ("", "sort=reward", "status=unscored", "task=t%2Fa", "q=b__", "attempts=all"):
        answer = client.get(f"/api/v1/runs?{query}").json()
        command = list_runs(settings, query)
        command["totals"].pop("failed")
        assert answer == command


def test_each_filter_and_order_answers_and_a_wrong_one_is_refused(client) -> None:
    for query in ("boundary=agent", "agent=oracle", "model=-", "fp=x", "q=%25_", "job=", "x=1"):
        assert client.get(f"/runs?{query}").status_code == 200, query
    for query in ("sort=x", "after=x", "after=W10", HUGE_PLACE, "before=%00", f"q={'x' * 600}"):
        answer = client.get(f"/runs?{query}")
        assert answer.status_code == 400, query
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_an_empty_list_names_the_next_command(settings: DashboardSettings) -> None:
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        assert "<code>bench demo</code> makes one" in client.get("/runs").text
        assert "No rollout matches 2 filters" in client.get("/runs?task=x&agent=y").text


def test_a_view_is_saved_in_the_cookie_and_shown_as_a_link(client) -> None:
    client.post("/views", data={"name": XSS, "query": "sort=reward&x=1"})
    page = client.get("/runs").text
    assert 'href="/runs?sort=reward"' in page
    assert "<script>alert" not in page
    client.post("/views", data={"name": "", "query": "sort=reward", "delete": XSS})
    assert "★" not in client.get("/runs").text


def test_a_running_attempt_without_files_is_shown_from_the_record(
    tmp_path: Path, jobs: Path
) -> None:
    write_job(jobs)
    for name in ("a__1", "b__1"):
        (jobs / "night" / name / "result.json").unlink()
        (jobs / "night" / name).rmdir()
    update_index(tmp_path / "i.db", jobs)
    index = Index(tmp_path / "i.db", jobs)
    [entry] = index.find("a__1")
    assert (entry.reward, entry.has_files, entry.status) == (1.0, 0, "completed")
    index.close()


def test_to_observe_a_record_writes_nothing_beside_it_and_blocks_no_writer(jobs: Path) -> None:
    write_job(jobs)
    database = jobs / "night" / "record.db"

    def files() -> list[tuple[str, int, int]]:
        found = ((path, path.stat()) for path in sorted(database.parent.glob("record.db*")))
        return [(path.name, status.st_mtime_ns, status.st_size) for path, status in found]

    before = files()
    with JobReader(database, mode="observe") as reader:
        assert sum(reader.counts().values()) == 4
    assert files() == before
    writer = apsw.Connection(str(database))
    writer.cursor().execute("UPDATE jobs SET created = 1")
    with JobReader(database, mode="observe") as reader:
        assert reader.counts()
        writer.cursor().execute("UPDATE jobs SET created = 2")
    before = [each for each in files() if not each[0].endswith("-shm")]
    with JobReader(database, mode="observe") as reader:
        assert reader.totals().created == 2
    assert [each for each in files() if not each[0].endswith("-shm")] == before
    writer.close(True)


def test_the_dashboard_leaves_the_jobs_directory_as_it_is(
    settings: DashboardSettings, jobs: Path
) -> None:
    write_job(jobs)

    def tree() -> list[tuple[str, int, int]]:
        found = []
        for place, _, names in os.walk(jobs):
            for path in (Path(place), *(Path(place, name) for name in names)):
                found.append((str(path), path.stat().st_mtime_ns, path.stat().st_size))
        return sorted(found)

    before = tree()
    update_index(settings.index_path(), jobs)
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        for path in ("/runs", "/jobs", "/jobs/night", "/r/a__1", "/metrics", "/healthz"):
            assert client.get(path).status_code == 200, path
    assert tree() == before
