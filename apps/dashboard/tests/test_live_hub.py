"""The live streams: nothing is lost or sent twice, and a slow reader costs the others nothing."""

import asyncio
import json
import queue
import random
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchflow_dashboard.index import Index
from benchflow_dashboard.live.frames import EncodedFrame, encode_event, encode_id, read_id
from benchflow_dashboard.live.hub import LiveHub
from benchflow_dashboard.live.log_tail import RECENT
from benchflow_dashboard.live.reader import Subscription
from benchflow_dashboard.live.stream import stream_frames
from benchflow_dashboard.stop import StopEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rollouts import write_rollout
from made_trees import tree_of_climbs

LIMIT_SEC = 30.0


def read_sse(data: str) -> list[dict[str, str]]:
    """Parse a stream as a browser does (HTML standard, section 9.2.6)."""
    events: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    lines: list[str] = []
    for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if lines:
                events.append({**fields, "data": "\n".join(lines)})
            fields.pop("event", None)
            lines = []
        elif name == "data":
            lines.append(value)
        elif name and not (name == "id" and "\0" in value):
            fields[name] = value
    return events


def read_frame(frame: EncodedFrame) -> tuple[str, Any, str]:
    """Return the name, the data and the id of the one event of a frame."""
    [event] = read_sse(frame.encode().decode())
    return event["event"], json.loads(event["data"]), event.get("id", "")


class Log:
    """The log of a rollout that a test writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.path = directory / "events.jsonl"
        self.path.touch()
        self.lines = 0

    def write(self, count: int = 1, kind: str = "step_started") -> None:
        with self.path.open("a") as file:
            for _ in range(count):
                event = {"seq": self.lines, "ts": 1.0, "kind": kind, "node": f"n{self.lines}"}
                file.write(json.dumps(event) + "\n")
                self.lines += 1


class Site:
    """A hub on the logs below a directory."""

    def __init__(self, home: Path, queue: int = 16) -> None:
        self.home = home
        self.stop = StopEvent()
        self.hub = LiveHub(self._find, self.stop, queue=queue)

    def _find(self, name: str) -> Path | None:
        return self.home / name if (self.home / name).is_dir() else None

    @asynccontextmanager
    async def read(
        self,
        *topics: str,
        allowed: Sequence[bool] = (True,),
        **rollouts: int | None,
    ) -> AsyncGenerator[AsyncGenerator[EncodedFrame]]:
        subscription = Subscription(frozenset(topics), tuple(rollouts), tuple(rollouts.values()))

        async def is_allowed() -> bool:
            return allowed[0]

        frames = stream_frames(self.hub, subscription, is_allowed, check_sec=0.05)
        try:
            yield frames
        finally:
            await frames.aclose()


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_SEC):
            await test

    asyncio.run(limited())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "r")


def test_a_stream_delivers_each_event_once_with_its_seq_as_the_id(site: Site, log: Log) -> None:
    async def test() -> None:
        log.write(3)
        async with site.hub.running(), site.read(r=None) as frames:
            name, data, id_ = read_frame(await anext(frames))
            assert (name, id_) == ("snapshot", "2")
            assert data["rollouts"]["r"]["seq"] == 2
            log.write(2, "question_opened")
            name, data, id_ = read_frame(await anext(frames))
            assert (name, id_) == ("events", "4")
            assert data["events"] == [[3, "question_opened", "n3"], [4, "question_opened", "n4"]]
            assert (data["first"], data["last"]) == (3, 4)

    run(test())


def test_a_stream_that_is_cut_at_random_points_loses_nothing(site: Site, log: Log) -> None:
    """The client keeps the id of the last whole event, as `EventSource` does."""
    seen: list[int] = []
    pick = random.Random(7)

    async def test() -> None:
        position = -1
        async with site.hub.running():
            for _ in range(50):
                async with site.read(r=position) as frames:
                    name, data, _ = read_frame(await anext(frames))
                    assert (name, data["rollouts"]["r"]["seq"]) == ("snapshot", position)
                    log.write(pick.randint(1, 5))
                    for _ in range(pick.randint(0, 2)):
                        log.write(pick.randint(0, 3))
                        if position == log.lines - 1:
                            break
                        _, data, id_ = read_frame(await anext(frames))
                        seen.extend(seq for seq, _, _ in data["events"])
                        position = int(id_)
                log.write(pick.randint(0, 2))
            async with site.read(r=position) as frames:
                await anext(frames)
                while position < log.lines - 1:
                    _, data, id_ = read_frame(await anext(frames))
                    seen.extend(seq for seq, _, _ in data["events"])
                    position = int(id_)

    run(test())
    assert seen == list(range(log.lines))


def test_a_position_that_is_too_old_or_of_another_log_gets_a_snapshot(site: Site, log: Log) -> None:
    async def test() -> None:
        log.write(RECENT + 10)
        async with site.hub.running():
            for since, expected in ((0, log.lines - 1), (log.lines + 5, log.lines - 1), (20, 20)):
                async with site.read(r=since) as frames:
                    _, data, id_ = read_frame(await anext(frames))
                    assert (data["rollouts"]["r"]["seq"], id_) == (expected, str(expected))

    run(test())


def test_a_slow_reader_loses_frames_and_gets_a_snapshot(tmp_path: Path, log: Log) -> None:
    site = Site(tmp_path, queue=2)

    async def test() -> None:
        async with site.hub.running(), site.read(r=-1) as slow, site.read(r=-1) as quick:
            await anext(slow)
            await anext(quick)
            seen: list[int] = []
            while len(seen) < 6:
                log.write()
                _, data, _ = read_frame(await anext(quick))
                seen += [seq for seq, _, _ in data["events"]]
            assert seen == list(range(6))
            name, data, id_ = read_frame(await anext(slow))
            assert (name, id_) == ("snapshot", "5")
            assert data["rollouts"]["r"]["seq"] == 5
            log.write()
            for reader in (slow, quick):
                name, data, _ = read_frame(await anext(reader))
                assert (name, data["first"], data["last"]) == ("events", 6, 6)

    run(test())


def test_readers_share_the_bytes_of_a_frame(site: Site, log: Log, monkeypatch) -> None:
    made: list[str] = []

    def encode(event: str, data: object) -> bytes:
        made.append(event)
        return encode_event(event, data)

    monkeypatch.setattr("benchflow_dashboard.live.hub.encode_event", encode)

    async def test() -> None:
        async with site.hub.running(), AsyncExitStack() as stack:
            readers = [await stack.enter_async_context(site.read(r=-1)) for _ in range(20)]
            for reader in readers:
                await anext(reader)
            made.clear()
            log.write(3)
            bodies = {(await anext(reader)).encode() for reader in readers}
        assert (made, len(bodies)) == (["events"], 1)

    run(test())


def test_one_stream_carries_several_rollouts_and_topics(tmp_path: Path, site: Site) -> None:
    a, b = Log(tmp_path / "a"), Log(tmp_path / "b")

    async def test() -> None:
        async with site.hub.running(), site.read("runs", a=-1, b=None, missing=None) as frames:
            _, data, id_ = read_frame(await anext(frames))
            assert (data["rollouts"]["missing"], id_) == (None, "-1,-1,-1")
            before = data["topics"]["runs"]
            a.write()
            assert read_frame(await anext(frames))[2] == "0,-1,-1"
            b.write(2)
            assert read_frame(await anext(frames))[2] == "0,1,-1"
            site.hub.notify("monitor")
            await asyncio.to_thread(site.hub.notify, "runs")
            name, data, id_ = read_frame(await anext(frames))
            assert (name, data["topic"], id_) == ("topic", "runs", "0,1,-1")
            assert data["version"] == site.hub.versions()["runs"] != before

    run(test())


def test_a_result_and_a_log_that_was_replaced_are_reported(site: Site, log: Log) -> None:
    async def test() -> None:
        log.write(2)
        async with site.hub.running(), site.read(r=1) as frames:
            _, data, _ = read_frame(await anext(frames))
            before = data["rollouts"]["r"]["stamp"]
            (log.directory / "result.json").write_text("{}")
            _, data, _ = read_frame(await anext(frames))
            assert (data["events"], data["last"]) == ([], 1)
            assert data["stamp"] != before
            log.path.unlink()
            log.path.touch()
            log.lines = 0
            log.write()
            name, data, id_ = read_frame(await anext(frames))
            while id_ != "0":
                name, data, id_ = read_frame(await anext(frames))
            assert name in {"snapshot", "events"}

    run(test())


def test_an_unfinished_or_unreadable_line_does_not_stop_a_stream(site: Site, log: Log) -> None:
    async def test() -> None:
        async with site.hub.running(), site.read(r=-1) as frames:
            await anext(frames)
            with log.path.open("ab") as file:
                file.write(b'\xff not json\n{"seq": 1, "kind": "step_started", "node": "n1"')
            _, data, _ = read_frame(await anext(frames))
            assert data["events"] == [[0, "", ""]]
            with log.path.open("ab") as file:
                file.write(b"}\n")
            _, data, _ = read_frame(await anext(frames))
            assert data["events"] == [[1, "step_started", "n1"]]

    run(test())


def test_a_stream_ends_when_its_user_may_not_read_any_more(site: Site, log: Log) -> None:
    allowed = [True]

    async def test() -> None:
        async with site.hub.running(), site.read(r=-1, allowed=allowed) as frames:
            await anext(frames)
            allowed[0] = False
            log.write()
            assert read_frame(await anext(frames))[0] == "end"
            assert [frame async for frame in frames] == []

    run(test())


def test_the_stop_event_ends_every_stream(site: Site, log: Log) -> None:
    async def test() -> None:
        async with site.hub.running(), site.read(r=-1) as early:
            await anext(early)
            site.stop.set()
            assert [frame async for frame in early] == []
            async with site.read(r=-1) as late:
                await anext(late)
                assert [frame async for frame in late] == []

    run(test())


def test_a_writer_may_report_before_and_after_the_server_runs(site: Site) -> None:
    site.hub.notify("runs")

    async def test() -> None:
        async with site.hub.running():
            site.hub.notify("runs")

    run(test())
    site.hub.notify("runs")
    assert site.hub.versions()["runs"].endswith(".3")


def test_a_second_dashboard_of_a_directory_hears_of_changes_too(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    first, second = (Index(tmp_path / "index.db", tmp_path / "jobs") for _ in range(2))
    reports: queue.SimpleQueue[None] = queue.SimpleQueue()
    second.watcher.on_change(lambda: reports.put(None))
    try:
        first.watcher.start()
        second.watcher.start()
        # It knows nothing of the file yet, so it reports at its start.
        reports.get(timeout=LIMIT_SEC)
        write_rollout(replace(tree_of_climbs([0]), rollout_id="new"), tmp_path / "jobs" / "new")
        reports.get(timeout=LIMIT_SEC)
    finally:
        second.close()
        first.close()


@settings(max_examples=50)
@given(
    st.recursive(
        st.text() | st.integers() | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
    st.lists(st.integers(min_value=-1, max_value=10**12), min_size=1, max_size=3),
)
def test_no_value_can_add_a_field_to_an_event(data: object, positions: list[int]) -> None:
    body = encode_id(positions) + encode_event("events", {"value": data, "cr": "\r\n\0\n\nid: 9"})
    assert not set(body.replace(b"\n", b"")) & set(b"\r\0")
    [event] = read_sse(body.decode())
    assert set(event) == {"event", "data", "id"}
    assert event["event"] == "events"
    assert json.loads(event["data"])["value"] == data
    assert read_id(event["id"], len(positions)) == tuple(positions)


@given(st.text())
def test_a_name_with_another_field_in_it_is_refused(name: str) -> None:
    for hostile in (f"events\n{name}", f"{name}\r", f"events\0{name}", f"events: {name}"):
        with pytest.raises(ValueError, match="not the name of an event"):
            encode_event(hostile, {})


@given(st.text(alphabet="0123456789,-\r\n\0 ٣"), st.integers(min_value=0, max_value=3))
def test_a_last_event_id_is_read_whole_or_not_at_all(text: str, count: int) -> None:
    positions = read_id(text, count)
    assert positions is None or encode_id(positions) == f"id: {text}\n".encode()
