"""The events of jobs: a stream that resumes, and that a lost write or a slow reader cannot harm."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from benchflow_serve.event_stream import PAGE, follow
from benchflow_serve_client import (
    JobEvent,
    JobPause,
    ServiceNotFoundError,
)
from benchflow_store.database.connection import SqliteConnection
from hypothesis import given, settings
from hypothesis import strategies as st
from served_jobs import job, open_client, wait_for_attempt
from served_rollouts import settings_at


def test_the_events_of_a_job_name_each_attempt_and_slot_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_client(settings_at(tmp_path, slots=2)) as (client, _):
            await client.submit_job(job(design={"replications": 3}))
            events = [event async for event in client.job_events("one")]
            assert [event.id for event in events] == list(range(1, len(events) + 1))
            assert (events[0].kind, events[-1].kind) == ("running", "ended")
            assert events[-1].state == "completed"
            kinds = Counter(event.kind for event in events)
            assert kinds == {"running": 1, "started": 3, "attempt": 3, "slot": 3, "ended": 1}
            ends = [event.slot for event in events if event.kind == "slot" and event.slot]
            assert sorted(slot.index for slot in ends) == [0, 1, 2]
            results = (await client.job_results("one")).slots
            assert sorted(ends, key=lambda slot: slot.index) == list(results)
            for at in (1, len(events) - 1):
                rest = [event async for event in client.job_events("one", after=at)]
                assert rest == events[at:]
            assert [e async for e in client.job_events("one", after=len(events))] == []
            with pytest.raises(ServiceNotFoundError):
                await anext(client.job_events("nobody"))

    asyncio.run(check())


def test_events_tell_of_a_pause_and_of_a_job_that_continues(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_client(settings_at(tmp_path, "hanging_agent")) as (client, service):
            await client.submit_job(job())
            await wait_for_attempt(service)
            await client.pause_job("one", JobPause(reason="lunch"))
            await client.resume_job("one")
            await client.cancel_job("one")
            events = [event async for event in client.job_events("one")]
            assert [e.kind for e in events if e.kind not in {"started", "attempt"}] == [
                "running",
                "paused",
                "resumed",
                "ended",
            ]
            assert (events[-1].state, events[-1].slot) == ("stopped", None)
            assert next(e.reason for e in events if e.kind == "paused") == "lunch"
            await client.resume_job("one")
            later = service.jobs.events("one", len(events))
            first = await anext(later)
            assert first is not None
            assert first.kind == "running"
            await later.aclose()
            await client.cancel_job("one")

    asyncio.run(check())


@pytest.mark.parametrize("lost", ["slot", "ended"])
def test_the_next_start_records_ends_that_a_kill_or_a_full_disk_has_lost(
    tmp_path: Path, lost: str
) -> None:
    async def run() -> list[JobEvent]:
        async with open_client(settings_at(tmp_path)) as (client, _):
            await client.submit_job(job(design={"replications": 2}))
            return [event async for event in client.job_events("one")]

    async def again() -> list[JobEvent]:
        async with open_client(settings_at(tmp_path)) as (client, _):
            async with asyncio.timeout(30):
                events: list[JobEvent] = []
                while not events or events[-1].kind != "ended":
                    events = [event async for event in client.job_events("one")]
            return events

    first = next(event.id for event in asyncio.run(run()) if event.kind == lost)
    database = SqliteConnection(tmp_path / "serve/serve.db", "write")
    with database.write_transaction():
        database.query("DELETE FROM job_events WHERE id >= ?", (first,))
    database.close()
    ends = Counter(e.kind for e in asyncio.run(again()) if e.kind in {"slot", "ended"})
    assert ends == {"slot": 2, "ended": 1}


@given(
    count=st.integers(0, 3 * PAGE + 5),
    after=st.integers(0, 3 * PAGE + 5),
    cuts=st.lists(st.integers(1, 2 * PAGE), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_a_stream_that_is_cut_anywhere_gives_each_event_once(
    count: int, after: int, cuts: list[int]
) -> None:
    events = [JobEvent(id=n, kind="started", at=0.0) for n in range(1, count + 1)]

    async def read(begin: int, most: int | None) -> list[int]:
        stream = follow(
            lambda number: events[number : number + PAGE],
            asyncio.Event,
            lambda number: number >= count,
            begin,
        )
        got: list[int] = []
        async for event in stream:
            assert event is not None
            got.append(event.id)
            if len(got) == most:
                break
        await stream.aclose()
        return got

    async def main() -> list[int]:
        got: list[int] = []
        for most in [*cuts, None]:
            got += await read(got[-1] if got else after, most)
        return got

    assert asyncio.run(main()) == list(range(after + 1, count + 1))
