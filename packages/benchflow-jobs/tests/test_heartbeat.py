"""A driver that is dead, stopped or blocked looks different from one that waits."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from benchflow_jobs.heartbeat import HEARTBEAT_FILE, Heartbeat, beating, read_heartbeat

SLOTS = {"waiting": 3, "queued": 1, "running": 2}


def counts() -> tuple[dict[str, int], tuple[str, ...]]:
    return SLOTS, ("one#1",)


def test_a_driver_beats_from_its_start_to_its_end(tmp_path: Path) -> None:
    async def run() -> list[Heartbeat]:
        beats: list[Heartbeat] = []
        async with beating(tmp_path, 2, counts, interval_sec=0.01):
            while len(beats) < 3:
                beat = read_heartbeat(tmp_path)
                assert beat is not None
                if not beats or beat.beat != beats[-1].beat:
                    beats.append(beat)
                await asyncio.sleep(0.002)
        return beats

    first, second, third = asyncio.run(run())
    assert (first.beat, first.epoch, first.process) == (0, 2, os.getpid())
    assert (first.slots, first.queued) == (SLOTS, ("one#1",))
    assert first.monotonic < second.monotonic < third.monotonic
    last = read_heartbeat(tmp_path)
    assert last is not None
    assert last.has_ended
    assert not last.is_late()
    assert [path.name for path in (tmp_path / "runtime").iterdir()] == ["heartbeat.json"]


def beat_of(tmp_path: Path) -> Heartbeat:
    async def run() -> Heartbeat:
        async with beating(tmp_path, 1, counts):
            beat = read_heartbeat(tmp_path)
            assert beat is not None
            return beat

    return asyncio.run(run())


def test_a_heartbeat_is_late_after_three_intervals_whatever_the_wall_clock_says(
    tmp_path: Path,
) -> None:
    beat = beat_of(tmp_path)
    assert not beat.is_late()
    jumped = beat.model_copy(update={"at": beat.at - 1e6})
    assert not jumped.is_late(), "the wall clock was set forward"
    old = beat.model_copy(update={"monotonic": time.monotonic() - 16})
    assert old.is_late()
    assert 16 <= old.age() < 60
    elsewhere = beat.model_copy(update={"boot": "another", "at": time.time() - 100})
    assert elsewhere.is_late()


def test_a_full_disk_or_a_link_does_not_end_a_job(tmp_path: Path) -> None:
    (tmp_path / "runtime").symlink_to("/proc")

    async def run() -> str:
        async with beating(tmp_path, 1, counts):
            return "done"

    assert asyncio.run(run()) == "done"
    assert read_heartbeat(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"job":"x"}', b"\xff"])
def test_a_damaged_heartbeat_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / HEARTBEAT_FILE
    assert read_heartbeat(tmp_path) is None
    path.parent.mkdir()
    path.write_bytes(content)
    assert read_heartbeat(tmp_path) is None
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert read_heartbeat(tmp_path) is None
