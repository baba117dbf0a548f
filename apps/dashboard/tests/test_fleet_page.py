"""The fleet: what lives, what ended runs left, queues, and sources that do not answer."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from benchflow_contracts import SandboxError, SandboxRecord
from benchflow_contracts.identity import RolloutIdentity
from benchflow_dashboard import DashboardSettings, app, create_app
from benchflow_dashboard.fleet.reader import FleetReader
from benchflow_dashboard.fleet.sources import read_queues
from benchflow_dashboard.fleet.timed_source import TimedSource
from benchflow_dashboard.index import update_index
from benchflow_jobs import job_view
from litestar.testing import TestClient
from made_jobs import write_job
from made_rollouts import write_rollout
from made_trees import tree_of_climbs
from xss_payloads import CANARY, PAYLOADS, dangers, structure

ADDRESS = "http://127.0.0.1:8642"
Read = Callable[[str], Sequence[SandboxRecord]]


def record(name: str, *, alive: bool | None, **identity: object) -> SandboxRecord:
    return SandboxRecord(
        id=name,
        provider="made",
        owner_alive=alive,
        created_at=time.time() - 90,
        identity=RolloutIdentity.model_validate(identity),
    )


def reader(read: Read, jobs: Sequence[Path] = (), names: Sequence[str] = ("made",)) -> FleetReader:
    return FleetReader(lambda: jobs, names=lambda: names, read=read)


@pytest.fixture
def page(settings: DashboardSettings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that shows the page with a made reader."""

    def show(fleet: FleetReader, path: str = "/fleet") -> str:
        monkeypatch.setattr(app, "FleetReader", lambda _live_jobs: fleet)
        with TestClient(create_app(settings), base_url=ADDRESS) as client:
            answer = client.get(path)
        assert answer.status_code == 200
        return answer.text

    return show


def test_owners_deadlines_and_rollouts_are_in_the_words_of_sandbox_list(page, jobs: Path) -> None:
    write_rollout(replace(tree_of_climbs([0]), rollout_id="room__1"), jobs / "room__1")
    update_index(jobs.parent / "index.db", jobs)
    records = [
        record(
            "alive", alive=True, rollout="room__1", scope="night", deadline=int(time.time()) + 600
        ),
        record("left", alive=False, rollout="room__2", deadline=int(time.time()) - 60),
        record("foreign", alive=None),
    ]
    text = page(reader(lambda _: records))
    assert "3 sandboxes" in text
    assert "1 left over" in text
    for word in (">active<", ">ended<", ">unknown<", "overdue by", 'href="/r/room__1"'):
        assert word in text
    # The run of another directory has no page here.
    assert "room__2" in text
    assert 'href="/r/room__2"' not in text
    assert "bench sandbox prune --sandbox made" in text


def test_a_provider_that_cannot_be_asked_says_why_beside_the_others(page) -> None:
    def read(name: str) -> Sequence[SandboxRecord]:
        if name == "docker":
            raise SandboxError("no engine at the socket", hint="start dockerd")
        if name == "broken":
            raise RuntimeError("<b>boom</b>")
        return [record("alive", alive=True)]

    text = page(reader(read, names=("made", "docker", "broken")))
    assert "docker: no engine at the socket. Hint: start dockerd." in text
    assert "broken: RuntimeError: &lt;b&gt;boom&lt;/b&gt;" in text
    assert "1 sandbox" in text


def test_a_provider_that_hangs_costs_one_thread_and_a_limited_wait() -> None:
    release, calls = threading.Event(), list[str]()

    def read(name: str) -> Sequence[SandboxRecord]:
        calls.append(name)
        assert release.wait(30)
        return [record("late", alive=True)]

    fleet = reader(read)
    views = [fleet.view(wait_sec=0.05) for _ in range(5)]
    assert calls == ["made"]
    assert all(view.providers[0].state.waits_since is not None for view in views)
    assert all(view.providers[0].state.value is None for view in views)
    release.set()
    [late] = fleet.view(wait_sec=30).providers[0].records
    assert late.id == "late"


def test_the_page_says_since_when_a_provider_does_not_answer(page) -> None:
    release = threading.Event()

    def read(_: str) -> Sequence[SandboxRecord]:
        release.wait(30)
        return []

    fleet = reader(read)
    hanging = FleetReader.view
    try:
        fleet.view = lambda _wait=0.0: hanging(fleet, 0.0)  # type: ignore[method-assign]
        assert "made has not answered for" in page(fleet)
    finally:
        release.set()


def test_the_last_answer_stays_while_the_next_one_hangs() -> None:
    release, answers = threading.Event(), iter([1])

    def read() -> int:
        for answer in answers:
            return answer
        release.wait(30)
        return 2

    source = TimedSource("made", read, fresh_sec=0.0)
    source.begin()
    assert source.reading(30).value == 1
    source.begin()
    hanging = source.reading(0.0)
    assert (hanging.value, hanging.waits_since is not None) == (1, True)
    release.set()
    assert source.reading(30).value == 2


def test_a_fresh_answer_is_not_read_again() -> None:
    calls: list[int] = []
    source = TimedSource("made", lambda: calls.append(1), fresh_sec=60.0)
    for _ in range(3):
        source.begin()
        source.reading(30)
    assert len(calls) == 1


def test_a_queue_is_what_job_status_says_and_leaves_the_record_alone(jobs: Path) -> None:
    directory = write_job(jobs, "night", {"base": {"a": [1.0, None]}}, pending=3)

    def files() -> list[tuple[str, int]]:
        return sorted((path.name, path.stat().st_mtime_ns) for path in directory.iterdir())

    before = files()
    [queue] = read_queues([directory])
    assert files() == before
    view = job_view(directory)
    assert (queue.job, queue.status, queue.process) == (view.job, view.status, view.process)
    assert (queue.completed, queue.failed) == (view.completed, view.failed)
    assert queue.waiting == view.pending - len(view.running) == 3
    assert queue.running == view.running


def test_a_job_that_cannot_be_read_is_a_line_with_its_reason(jobs: Path, page) -> None:
    (jobs / "broken").mkdir()
    text = page(reader(lambda _: [], jobs=[jobs / "broken"]))
    assert "has no record.db yet" in text


def test_nothing_runs_nothing_is_left(page) -> None:
    text = page(reader(lambda _: []))
    assert "No job runs" in text
    assert "No sandboxes." in text


def test_no_payload_leaves_its_text(page) -> None:
    def show(payload: str) -> str:
        text = payload.replace("\ud800", "").replace("\0", "")
        made = [record(text, alive=False, rollout=text, scope=text, slot=text, node=text)]
        return page(reader(lambda _: made))

    plain = structure(show(f"plain {CANARY}"))
    for payload in PAYLOADS:
        text = show(payload)
        assert dangers(text) == []
        assert structure(text) == plain
