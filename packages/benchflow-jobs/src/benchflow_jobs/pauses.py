"""The pauses of a job that runs: of the job, of a variant or of a model endpoint."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from benchflow_contracts import StoreError

from . import orders
from .driver import Control
from .holding import RolloutHolds
from .job_record import DatabaseRecord
from .scheduling import Latch, Scheduler

_HOLD_SEC = 20.0
"""An order is answered after this time, also if a sandbox is not frozen yet."""


@dataclass(slots=True)
class JobPauses:
    """Pauses scopes of a job and resumes them, and records what is paused, by whom and why."""

    scheduler: Scheduler
    record: DatabaseRecord
    holds: RolloutHolds
    tell: Callable[[Control], None]
    """Gives the driver an order."""
    _known: dict[Latch, dict[str, Any]] = field(default_factory=dict[Latch, dict[str, Any]])
    """The last pause of each scope, the newest last. A scope may have been resumed since."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def reasons(self) -> Mapping[str, str]:
        """Return the reason of each pause in force, by its scope in words."""
        return {
            scope_in_words(latch): _reason(self._known.get(latch, {}))
            for latch in self.scheduler.latches
        }

    def note_breaker(self, latch: Latch, reason: str) -> None:
        """Note a pause that a circuit breaker made and recorded."""
        self._note(latch, {"reason": reason, "by": "breaker"})

    async def pause(self, order: orders.Pause, latch: Latch) -> str:
        """Pause a scope. Return what was done, in one sentence."""
        self._note(
            latch,
            {
                "reason": order.reason,
                "by": order.by,
                "requested_at": time.time(),
                "now": order.now,
                "keep": order.keep,
            },
        )
        self.tell(lambda scheduler, _now: scheduler.pause(latch))
        # A later order replaces what an earlier one does to the rollouts of this scope.
        self.holds.release(latch)
        if order.now:
            await self._hold(latch)
        elif order.keep:
            self.holds.keep(latch)
        await self._publish()
        running = self.scheduler.running
        rest = f"{running} rollouts are running"
        if order.now:
            rest = str(self.holds.report(running))
        elif order.keep:
            rest = str(self.holds.save_report(running))
        return f"paused {scope_in_words(latch)}; {rest}"

    async def resume(self, latch: Latch) -> str:
        """End the pause of a scope. Return what was done, in one sentence."""
        paused = self.scheduler.latches | self._known.keys()
        if latch not in paused:
            return f"{scope_in_words(latch)} was not paused{_still(paused)}"
        self.tell(lambda scheduler, now: scheduler.resume(latch, now))
        self.holds.release(latch)
        self._known.pop(latch, None)
        await self._publish(paused - {latch})
        return f"resumed {scope_in_words(latch)}{_still(paused - {latch})}"

    def note_change(self) -> None:
        """Record what stands still and what is saved, because that changed."""
        self._start(self._publish_holds())

    async def _hold(self, latch: Latch) -> None:
        """Wait until the rollouts of a scope stand still, but not longer than an order may take."""
        task = self._start(self.holds.hold(latch))
        await asyncio.wait([task], timeout=_HOLD_SEC)
        if not task.done():
            task.add_done_callback(lambda _: self.note_change())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _publish_holds(self) -> None:
        # A record that cannot be written stops the job by its next commit.
        with suppress(StoreError):
            if self.holds.is_active:
                await self._publish()

    async def _publish(self, paused: frozenset[Latch] | None = None) -> None:
        """Record the newest pause that is in force, or that the job runs."""
        paused = self.scheduler.latches | self._known.keys() if paused is None else paused
        if not paused:
            await self.record.set_status("running")
            return
        newest = next(reversed(self._known), min(paused, key=scope_in_words))
        pause = self._known.get(newest, {"scope": newest.scope, "name": newest.name})
        held = self.holds.fields(self.scheduler.running)
        await self.record.set_status("paused", pause={**pause, **held})

    def _note(self, latch: Latch, pause: Mapping[str, Any]) -> None:
        self._known.pop(latch, None)
        self._known[latch] = {"scope": latch.scope, "name": latch.name, **pause}


def scope_in_words(latch: Latch) -> str:
    """Return the scope of a latch for people."""
    return "the job" if latch.scope == "job" else f"{latch.scope} {latch.name!r}"


def _reason(pause: Mapping[str, Any]) -> str:
    by = pause.get("by")
    if by == "breaker":
        return str(pause["reason"])
    return f"{pause.get('reason') or 'no reason given'}{f' (by {by})' if by else ''}"


def _still(latches: frozenset[Latch]) -> str:
    names = ", ".join(sorted(map(scope_in_words, latches)))
    return f"; still paused: {names}" if latches else ""
