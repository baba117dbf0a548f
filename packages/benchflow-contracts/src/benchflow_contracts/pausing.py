"""The pause of a running rollout: its sandboxes are frozen, and its time limits stand still.

Code that limits the time of work in a sandbox uses `running_timeout` and `running_time`. They do
not count the time of a pause.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import NoReturn, Self


class PauseSwitch:
    """Pauses one rollout, and resumes it. Use it on one event loop.

    A pause stops all time limits at once. Those who freeze the sandboxes follow the switch, and
    report each freeze that is not complete.
    """

    def __init__(self) -> None:
        self._paused_at: float | None = None
        self._paused_sec = 0.0
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._operations = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._followers: dict[object, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._freezes: set[asyncio.Future[None]] = set()
        self.refusal: str | None = None
        """Why the last pause did not hold: a sandbox cannot be frozen."""
        self._save_asked = asyncio.Event()
        self.save_refusal: str | None = None
        """Why the rollout could not be saved. It runs on."""
        self.on_saved: Callable[[], None] = lambda: None
        """Called when the rollout is saved. The owner of the rollout then cancels it."""
        self.on_save_refused: Callable[[str], None] = lambda _: None
        """Called with the reason when the rollout cannot be saved."""

    @property
    def is_paused(self) -> bool:
        """Whether the rollout is paused, or is about to stand still."""
        return self._paused_at is not None

    @property
    def is_settled(self) -> bool:
        """Whether no freeze of a sandbox is in progress."""
        return not self._freezes

    def pause(self) -> None:
        """Pause the rollout. Idempotent."""
        if self._paused_at is not None:
            return
        self.refusal = None
        self._paused_at = time.monotonic()
        self._resumed.clear()
        for on_pause, _ in list(self._followers.values()):
            on_pause()

    def resume(self) -> None:
        """Let the rollout continue. Idempotent."""
        if self._paused_at is None:
            return
        self._paused_sec += time.monotonic() - self._paused_at
        self._paused_at = None
        self._resumed.set()
        for _, on_resume in list(self._followers.values()):
            on_resume()

    def refuse(self, reason: str) -> None:
        """Let the rollout continue, because a sandbox cannot be frozen."""
        if self.is_paused:
            self.resume()
            self.refusal = reason

    @property
    def wants_save(self) -> bool:
        """Whether the rollout is to be saved and to end."""
        return self._save_asked.is_set()

    async def wait_save(self) -> None:
        """Wait until the rollout is to be saved."""
        await self._save_asked.wait()

    def request_save(self) -> None:
        """Let the rollout be saved at its next state that can be restored, and end."""
        self.save_refusal = None
        self._save_asked.set()

    def cancel_save(self) -> None:
        """Let the rollout run on, unless it is saved already."""
        self._save_asked.clear()

    def refuse_save(self, reason: str) -> None:
        """Let the rollout run on, because it cannot be saved."""
        self.save_refusal = reason
        self._save_asked.clear()
        self.on_save_refused(reason)

    async def end_saved(self) -> NoReturn:
        """Report that the rollout is saved, and wait until its owner cancels it."""
        self._save_asked.clear()
        self.on_saved()
        while True:
            await asyncio.get_running_loop().create_future()

    def running_time(self) -> float:
        """Return monotonic seconds without the time of pauses."""
        now = time.monotonic() if self._paused_at is None else self._paused_at
        return now - self._paused_sec

    @contextmanager
    def follow(
        self, on_pause: Callable[[], None], on_resume: Callable[[], None]
    ) -> Generator[None]:
        """Call `on_pause` and `on_resume` inside the block; `on_pause` at once during a pause."""
        key = object()
        self.add_follower(key, on_pause, on_resume)
        try:
            if self.is_paused:
                on_pause()
            yield
        finally:
            self.remove_follower(key)

    def add_follower(
        self, key: object, on_pause: Callable[[], None], on_resume: Callable[[], None]
    ) -> None:
        """Call `on_pause` and `on_resume` until `remove_follower` gets the same key."""
        self._followers[key] = on_pause, on_resume

    def remove_follower(self, key: object) -> None:
        """Call the functions of this key no more."""
        del self._followers[key]

    def begin_freeze(self) -> Callable[[], None]:
        """Note that a freeze is in progress. Return a function that notes its end. Idempotent."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._freezes.add(done)

        def end() -> None:
            self._freezes.discard(done)
            if not done.done():
                done.set_result(None)

        return end

    async def wait_settled(self) -> None:
        """Wait until no freeze is in progress."""
        while self._freezes:
            await asyncio.wait(set(self._freezes))

    async def wait_running(self) -> None:
        """Wait until the rollout is not paused."""
        while self._paused_at is not None:
            await self._resumed.wait()

    @asynccontextmanager
    async def uninterrupted(self) -> AsyncGenerator[None]:
        """Begin the block only while the rollout runs. No sandbox is frozen during the block."""
        await self.wait_running()
        self._operations += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._operations -= 1
            if not self._operations:
                self._idle.set()

    async def wait_interruptible(self) -> None:
        """Wait until no `uninterrupted` block runs."""
        while self._operations:
            await self._idle.wait()


_current: ContextVar[PauseSwitch] = ContextVar("benchflow_pause", default=PauseSwitch())  # noqa: B039


def pause_switch() -> PauseSwitch:
    """Return the switch of the running rollout; outside a rollout, one that nobody turns."""
    return _current.get()


@contextmanager
def pausable_by(switch: PauseSwitch) -> Generator[None]:
    """Use `switch` inside this block, also in tasks that it starts."""
    token = _current.set(switch)
    try:
        yield
    finally:
        _current.reset(token)


def running_time() -> float:
    """Return monotonic seconds without the time in which the running rollout was paused."""
    return pause_switch().running_time()


class RunningTimeout:
    """As `asyncio.timeout`, without the time in which the rollout is paused."""

    __slots__ = ("_is_suspended", "_left", "_switch", "_timeout")

    def __init__(self, seconds: float | None, switch: PauseSwitch | None = None) -> None:
        self._left = seconds
        self._switch = switch or pause_switch()
        self._timeout: asyncio.Timeout
        self._is_suspended = False

    @contextmanager
    def suspended(self) -> Generator[None]:
        """Do not count the time inside this block. Blocks are not nested."""
        self._stop()
        self._is_suspended = True
        try:
            yield
        finally:
            self._is_suspended = False
            self._run()

    def expired(self) -> bool:
        """Return whether this timeout ended its block."""
        return self._timeout.expired()

    async def __aenter__(self) -> Self:
        due = None if self._switch.is_paused else self._due()
        self._timeout = asyncio.timeout_at(due)
        await self._timeout.__aenter__()
        self._switch.add_follower(self, self._stop, self._run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._switch.remove_follower(self)
        await self._timeout.__aexit__(kind, error, traceback)

    def _run(self) -> None:
        stands_still = self._is_suspended or self._switch.is_paused
        if self._left is not None and not stands_still and not self._timeout.expired():
            self._timeout.reschedule(self._due())

    def _due(self) -> float | None:
        return None if self._left is None else asyncio.get_running_loop().time() + self._left

    def _stop(self) -> None:
        due = self._timeout.when()
        if due is not None and not self._timeout.expired():
            self._left = due - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)


def running_timeout(seconds: float | None, switch: PauseSwitch | None = None) -> RunningTimeout:
    """Limit an `async with` block to `seconds`; time of a pause does not count.

    Without `switch`, the one of the running rollout is used.
    """
    return RunningTimeout(seconds, switch)
