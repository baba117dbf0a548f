"""The hub: one task that turns changes into frames, and gives each frame to its readers.

A writer only sets a flag. A reader that does not keep up loses frames and gets a snapshot.
"""

import asyncio
import logging
import secrets
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchflow_dashboard.stop import StopEvent

from .frames import encode_event
from .log_tail import LogRead, LogTail
from .reader import QUEUE, Delivery, LiveReader, Subscription

TOPICS: Final = ("runs", "monitor")
"""What a page may watch beside rollouts. `runs` also covers jobs."""
_LOG_SEC: Final = 0.02
"""How often the logs of running rollouts are looked at."""
_ENDED_SEC: Final = 1.0
_BREATH_SEC: Final = 0.05
"""The least time between two frames of a topic or of a rollout."""
MAX_READERS: Final = 1_000
MAX_OF_USER: Final = 50
MAX_OF_ADDRESS: Final = 200
"""The open streams of one address. A browser has one; without shared workers, one for each tab."""

_logger = logging.getLogger(__name__)


class StreamSlot:
    """The place of one stream among those of its user and of its address.

    The place is free when nobody holds the object, also if the stream never began.
    """

    def __init__(self, user: str, address: str) -> None:
        self.user, self.address = user, address


class LiveHub:
    """The readers of one server. `directory_of` returns the directory of a rollout, or None."""

    def __init__(
        self, directory_of: Callable[[str], Path | None], stop: StopEvent, *, queue: int = QUEUE
    ) -> None:
        self._directory_of, self._stop, self._queue = directory_of, stop, queue
        self._boot = secrets.token_hex(4)
        self._counts: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self._changed: set[str] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._tails: dict[str, LogTail] = {}
        self._readers: weakref.WeakSet[LiveReader] = weakref.WeakSet()
        self._slots: weakref.WeakSet[StreamSlot] = weakref.WeakSet()

    @property
    def is_full(self) -> bool:
        """Whether no further reader is taken."""
        return len(self._readers) >= MAX_READERS

    def take_slot(self, user: str, address: str) -> StreamSlot | None:
        """Return a place for one more stream of a user and an address; `None` without room.

        An empty `user` has no limit of its own: nobody has to log in.
        """
        of_user = sum(slot.user == user for slot in self._slots) if user else 0
        of_address = sum(slot.address == address for slot in self._slots)
        if of_user >= MAX_OF_USER or of_address >= MAX_OF_ADDRESS:
            return None
        slot = StreamSlot(user, address)
        self._slots.add(slot)
        return slot

    def versions(self) -> dict[str, str]:
        """Return a text for the state of each topic. It changes with each notification.

        A page takes the text before it reads its data, so that the page never misses a change.
        """
        return {topic: f"{self._boot}.{count}" for topic, count in self._counts.items()}

    def notify(self, topic: str) -> None:
        """Report a change of a topic. Safe in any thread, and takes no time of the caller."""
        with self._lock:
            self._counts[topic] += 1
            self._changed.add(topic)
            loop = self._loop
            if loop is not None:
                loop.call_soon_threadsafe(self._wake.set)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Serve readers inside this block. The stop event ends all streams."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._run()), group.create_task(self._end_on_stop())]
                try:
                    yield
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            with self._lock:
                self._loop = None
            self._close_readers()

    async def subscribe(self, subscription: Subscription) -> LiveReader:
        """Return a new reader. Events of its rollouts after its positions wait in its queue."""
        tails = await self._open(subscription.rollouts)
        reader = LiveReader(subscription, bound=self._queue)
        for name, since in zip(subscription.rollouts, subscription.since, strict=True):
            tail = tails.get(name)
            if tail is None:
                reader.positions[name] = -1
                continue
            self._tails[name] = tail
            missed = None if since is None else tail.since(since)
            if missed is None or since is None:
                reader.positions[name] = tail.seq
                continue
            reader.positions[name] = since
            if missed:
                reader.push(Delivery(_events_frame(name, tail, missed), name, tail.seq))
        self._readers.add(reader)
        self._wake.set()
        if self._stop.is_set:
            reader.close()
        return reader

    def remove(self, reader: LiveReader) -> None:
        """Forget a reader whose stream has ended. Idempotent."""
        reader.close()
        self._readers.discard(reader)

    def snapshot(self, reader: LiveReader) -> bytes:
        """Return the frame that says where the reader's stream continues.

        A reader that lost frames continues from the present.
        """
        if reader.is_behind:
            tails = {name: self._tails.get(name) for name in reader.positions}
            reader.resume({name: tail.seq for name, tail in tails.items() if tail is not None})
        rollouts: dict[str, Any] = {}
        for name, seq in reader.positions.items():
            tail = self._tails.get(name)
            rollouts[name] = None if tail is None else {"seq": seq, "stamp": tail.stamp}
        versions = self.versions()
        topics = {topic: versions[topic] for topic in sorted(reader.subscription.topics)}
        return encode_event("snapshot", {"topics": topics, "rollouts": rollouts})

    async def _open(self, names: Iterable[str]) -> Mapping[str, LogTail]:
        """Return the tails of rollouts, read up to now. An unknown rollout has none."""
        known = dict(self._tails)
        missing = [name for name in names if name not in known]
        fresh = await asyncio.to_thread(self._open_new, missing) if missing else {}
        # Another reader may have opened the same log in the meantime.
        return {**fresh, **known, **self._tails}

    def _open_new(self, names: Iterable[str]) -> dict[str, LogTail]:
        tails: dict[str, LogTail] = {}
        for name in names:
            directory = self._directory_of(name)
            if directory is not None:
                tails[name] = tail = LogTail(directory)
                read = tail.read()
                if read is not None:
                    tail.apply(read)
        return tails

    async def _run(self) -> None:
        while True:
            await self._wait()
            has_news = True
            try:
                has_news = self._publish_topics()
                has_news |= await self._read_logs()
            except Exception as error:  # noqa: BLE001 - one bad log must not end the streams
                _logger.warning("a live update failed: %s", error)
            if has_news:
                await asyncio.sleep(_BREATH_SEC)

    async def _wait(self) -> None:
        seconds = None
        if self._tails:
            is_live = not all(tail.has_ended for tail in self._tails.values())
            seconds = _LOG_SEC if is_live else _ENDED_SEC
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    def _publish_topics(self) -> bool:
        """Send the changed topics. Return whether there are any."""
        with self._lock:
            changed, self._changed = self._changed, set()
        versions = self.versions()
        for topic in sorted(changed):
            delivery = Delivery(encode_event("topic", {"topic": topic, "version": versions[topic]}))
            for reader in self._readers:
                if topic in reader.subscription.topics:
                    reader.push(delivery)
        return bool(changed)

    async def _read_logs(self) -> bool:
        """Send the new events of all logs. Return whether there are any."""
        used = {name for reader in self._readers for name in reader.positions}
        self._tails = {name: tail for name, tail in self._tails.items() if name in used}
        if not self._tails:
            return False
        tails = dict(self._tails)
        reads = await asyncio.to_thread(_read_all, tails)
        for name, read in reads.items():
            tail, before = tails[name], tails[name].seq
            tail.apply(read)
            self._publish_events(name, tail, read, before)
        return bool(reads)

    def _publish_events(self, name: str, tail: LogTail, read: LogRead, before: int) -> None:
        readers = [reader for reader in self._readers if name in reader.positions]
        if read.is_other_log or tail.seq - before > len(read.events):
            for reader in readers:
                reader.drop()
            return
        delivery = Delivery(_events_frame(name, tail, list(read.events)), name, tail.seq)
        for reader in readers:
            reader.push(delivery)

    async def _end_on_stop(self) -> None:
        await self._stop.wait()
        self._close_readers()

    def _close_readers(self) -> None:
        for reader in list(self._readers):
            reader.close()


def _read_all(tails: Mapping[str, LogTail]) -> dict[str, LogRead]:
    reads = {name: tail.read() for name, tail in tails.items()}
    return {name: read for name, read in reads.items() if read is not None}


def _events_frame(name: str, tail: LogTail, events: list[Any]) -> bytes:
    first = events[0][0] if events else tail.seq + 1
    data = {
        "rollout": name,
        "first": first,
        "last": tail.seq,
        "stamp": tail.stamp,
        "events": events,
    }
    return encode_event("events", data)
