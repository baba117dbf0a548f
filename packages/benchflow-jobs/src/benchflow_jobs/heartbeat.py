"""The heartbeat of a job: a small file that the driver replaces every few seconds."""

import asyncio
import os
import platform
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, Literal

from benchflow_contracts import Model
from pydantic import Field, ValidationError

HEARTBEAT_FILE: Final = "runtime/heartbeat.json"
INTERVAL_SEC: Final = 5.0
_MOST_BYTES: Final = 1 << 20
_MOST_SLOTS: Final = 100
_LATE: Final = 3
"""Intervals without a heartbeat after which a driver counts as dead or stopped."""


class Heartbeat(Model):
    """One heartbeat of a driver."""

    schema_version: Literal["1.0"] = "1.0"
    job: str
    epoch: int = Field(ge=1)
    process: int
    host: str
    boot: str
    """The boot of the host. Only within one boot are two values of `monotonic` comparable."""
    beat: int = Field(ge=0)
    """Counts from 0 in each run of the job."""
    at: float
    """Seconds since the epoch. The clock may jump."""
    monotonic: float
    """Seconds of the host's monotonic clock."""
    interval_sec: float = Field(gt=0)
    """The planned time to the next heartbeat."""
    has_ended: bool = False
    """Whether the run of the job has ended in order. No heartbeat follows."""
    slots: Mapping[str, int] = {}
    """The number of slots by state: `waiting`, `delayed`, `queued`, `running`, `completed`,
    `failed` and `pruned`. A queued one was handed out, and waits for a worker."""
    queued: tuple[str, ...] = ()
    """The names of the first 100 queued slots."""

    def age(self) -> float:
        """Return the seconds since this heartbeat, by the monotonic clock if possible."""
        is_comparable = self.boot and self.boot == _boot()
        now, then = (time.monotonic(), self.monotonic) if is_comparable else (time.time(), self.at)
        return max(0.0, now - then)

    def is_late(self) -> bool:
        """Return whether the driver of a running job seems dead or stopped."""
        return not self.has_ended and self.age() > _LATE * self.interval_sec


def read_heartbeat(directory: Path) -> Heartbeat | None:
    """Return the last heartbeat of a job; None if it has none that can be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(directory / HEARTBEAT_FILE, flags), "rb") as file:
            return Heartbeat.model_validate_json(file.read(_MOST_BYTES))
    except (OSError, ValidationError):
        return None


@asynccontextmanager
async def beating(
    directory: Path,
    epoch: int,
    counts: Callable[[], tuple[Mapping[str, int], tuple[str, ...]]],
    *,
    interval_sec: float = INTERVAL_SEC,
) -> AsyncGenerator[None]:
    """Write a heartbeat now, inside the block every `interval_sec`, and a last one at its end.

    `counts` returns `Heartbeat.slots` and the names of the queued slots. It runs on the event loop:
    a loop that is blocked has no heartbeat. A file that cannot be written is left out, because a
    viewer must not end a job.
    """

    def heartbeat(beat: int, *, has_ended: bool = False) -> Heartbeat:
        slots, queued = counts()
        return Heartbeat(
            job=directory.name,
            epoch=epoch,
            process=os.getpid(),
            host=platform.node(),
            boot=_boot(),
            beat=beat,
            at=time.time(),
            monotonic=time.monotonic(),
            interval_sec=interval_sec,
            has_ended=has_ended,
            slots=slots,
            queued=queued[:_MOST_SLOTS],
        )

    beat = 0

    async def follow() -> None:
        nonlocal beat
        while True:
            await asyncio.sleep(interval_sec)
            beat += 1
            await asyncio.to_thread(_write, directory, heartbeat(beat))

    _write(directory, heartbeat(beat))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            _write(directory, heartbeat(beat + 1, has_ended=True))


def _write(directory: Path, heartbeat: Heartbeat) -> None:
    path = directory / HEARTBEAT_FILE
    part = path.with_name(".heartbeat.part")
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        part.unlink(missing_ok=True)
        with part.open("xb") as file:
            file.write(heartbeat.model_dump_json().encode())
        part.replace(path)


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
