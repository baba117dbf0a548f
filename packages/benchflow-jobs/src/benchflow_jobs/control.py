"""Orders of people to a job that runs: by signals, and by the socket of the job."""

import asyncio
import signal
from collections.abc import Callable, Generator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from benchflow_contracts import UsageError
from benchflow_store.database import DATABASE_FILE, JobReader, JobStatus

from . import orders
from .begin import PlannedJob, extended
from .driver import Control, JobDriver
from .holding import RolloutHolds
from .job_record import DatabaseRecord, JobLimits
from .orders import Order, Reply
from .pauses import JobPauses
from .planning import plan_revision, variant_plans, write_plan
from .preflight import Providers
from .scheduling import Action, Latch, Scheduler, SlotState

_HURRY = "press Ctrl-C again to end them now"


@dataclass(slots=True)
class JobControl:
    """Gives orders to the driver of a job. Call it on the job's event loop."""

    driver: JobDriver
    record: DatabaseRecord
    job: PlannedJob
    directory: Path
    providers: Providers
    fixed_endpoints: set[str]
    """Endpoints whose limit people have set."""
    holds: RolloutHolds
    saved_rollouts: dict[int, str]
    """Gets the rollout of each slot that a pause has saved, and that a later attempt continues."""
    interrupted: str | None = None
    """The signal or the person that ended the job before its end."""
    final: JobStatus = "interrupted"
    """The state of a job that was interrupted."""
    _plan_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Two orders that change slots follow each other."""
    _ending: str = ""
    """Why nothing more starts."""
    _pauses: JobPauses = field(init=False)

    def __post_init__(self) -> None:
        scheduler, tell = self.driver.scheduler, self._tell
        self._pauses = JobPauses(scheduler, self.record, self.holds, tell)
        self.holds.on_hold = lambda slot: tell(lambda job, now: job.hold(slot, now))
        self.holds.on_release = self._continue_time
        self.holds.on_saved = self._end_saved

    def _continue_time(self, slot: int) -> None:
        self._tell(lambda job, now: job.release(slot, now))
        self._pauses.note_change()

    def _end_saved(self, slot: int, rollout: str) -> None:
        self.saved_rollouts[slot] = rollout
        self._tell(lambda job, _now: job.interrupt(slot, "the rollout is saved"))
        self._pauses.note_change()

    async def receive(self, order: Order) -> Reply:
        """Carry out an order, and return when it is durable.

        Raises:
            UsageError: The order names something that the job does not have.
            StoreError: The record cannot be written.
        """
        match order:
            case orders.Pause():
                latch = self._latch(order.scope, order.name)
                return _done(await self._pauses.pause(order, latch))
            case orders.Resume():
                return await self._resume(order)
            case orders.Drain():
                self.drain(order.by or "`bench job drain`")
                return _done(f"nothing more starts; {self._running} rollouts are running")
            case orders.Cancel() | orders.Kill():
                self.final = "killed" if order.do == "kill" else "interrupted"
                count = self._running
                self.stop(order.by or f"`bench job {order.do}`")
                return _done(f"ending {count} rollouts")
            case orders.Requeue():
                async with self._plan_lock:
                    with self.driver.hold_open():
                        return await self._requeue(order)
            case orders.Extend():
                async with self._plan_lock:
                    with self.driver.hold_open():
                        return await self._extend(order)
            case orders.SetLimits():
                return await self._set(order)

    def drain(self, by: str) -> None:
        """Start nothing more. The job ends when what runs has ended, also what stands still."""
        self.interrupted = by
        self.holds.release_all()
        self._drain(f"interrupted by {by}")

    def stop(self, by: str) -> None:
        """End what runs now, and then the job."""
        self.interrupted = by
        self._ending = f"interrupted by {by}"
        self.holds.release_all()
        self._tell(lambda scheduler, _now: scheduler.stop(f"interrupted by {by}"))

    def spend(self, reason: str) -> None:
        """Start nothing more, because a budget is used up."""
        self._drain(reason)

    def note_pause(self, latch: Latch, reason: str) -> None:
        """Report a pause that a circuit breaker made."""
        self._pauses.note_breaker(latch, reason)
        self.report_limits()

    def note_model_limit(self, url: str, limit: int) -> None:
        """Report the limit that an endpoint's answers set."""
        self.record.note_model_limit(url, limit)
        self.report_limits()

    def note_capacity(self, capacity: Mapping[str, int]) -> None:
        """Use what the workers have, because some joined or left.

        Without a worker, one attempt may still start: its failure says that none is left.
        """
        limits = {**capacity, "slots": max(1, capacity.get("slots", 0))}
        self._tell(lambda scheduler, now: scheduler.set_limits(now, limits))

    def report_limits(self) -> None:
        """Give the limits in force to the listener of the job."""
        if self.record.listener is None:
            return
        scheduler = self.driver.scheduler
        limits = JobLimits(
            resources=dict(scheduler.limits),
            endpoints=dict(scheduler.model_limits),
            throttled=self.record.throttled,
            pauses=self._pauses.reasons(),
            ending=self._ending,
            budget=replace(self.record.budget),
        )
        self.record.listener.limited(limits)

    def _drain(self, reason: str) -> None:
        self._ending = self._ending or reason
        self._tell(lambda scheduler, _now: scheduler.drain(reason))

    def _tell(self, control: Control) -> None:
        """Give the driver an order, and the listener the limits that hold after it."""

        def carry_out(scheduler: Scheduler, now: float) -> list[Action]:
            actions = control(scheduler, now)
            self.report_limits()
            return actions

        self.driver.tell(carry_out)

    @contextmanager
    def limited_to(self, seconds: float | None) -> Generator[None]:
        """Start nothing more after `seconds` inside the block; `None` sets no limit."""
        if seconds is None:
            yield
            return
        reason = f"the budget is used up: {seconds:g} seconds of this run"
        timer = asyncio.get_running_loop().call_later(seconds, self.spend, reason)
        try:
            yield
        finally:
            timer.cancel()

    @property
    def _running(self) -> int:
        return self.driver.scheduler.running

    async def _resume(self, order: orders.Resume) -> Reply:
        latch = self._latch(order.scope, order.name)
        if self.interrupted is not None:
            raise UsageError(
                f"the job is ending: it was interrupted by {self.interrupted}",
                hint="resume it when its process has ended",
            )
        return _done(await self._pauses.resume(latch))

    def _latch(self, scope: orders.Scope, name: str) -> Latch:
        variants = self.job.plan.variants
        known = {
            "job": {""},
            "variant": {variant.id for variant in variants},
            "endpoint": {variant.run.model.base_url or "" for variant in variants} - {""},
        }[scope]
        if name not in known:
            raise UsageError(
                f"the job has no {scope} {name!r}",
                hint=f"it has: {', '.join(sorted(known)) or 'none'}",
            )
        return Latch(scope, name)

    async def _requeue(self, order: orders.Requeue) -> Reply:
        schedule = self.driver.scheduler.schedule
        given_up = {SlotState.FAILED, SlotState.PRUNED}
        chosen = chosen_slots(self.directory, order)
        indexes = [index for index in chosen if schedule.state_of(index) in given_up]
        if indexes:
            await self.record.writer.requeue(indexes)
            self.driver.tell(lambda scheduler, now: scheduler.requeue(indexes, now))
        return _done(requeued(indexes, chosen))

    async def _extend(self, order: orders.Extend) -> Reply:
        before = self.job.plan
        job = await extended(self.job, order)
        more = job.plan.slots[len(before.slots) :]
        if not len(more):
            return _done("the job has all of this already")
        await self.providers.open_for(job)
        write_plan(self.directory, job.plan)
        await self.record.writer.extend(plan_revision(job.plan), more)
        self.job = job
        self.record.slots = job.plan.slots
        if self.record.listener is not None:
            self.record.listener.extended(len(job.plan.slots))
        variants = variant_plans(job.plan)[len(before.variants) :]
        numbers = [variant for variant, _, _ in more.places()]
        self.driver.tell(lambda scheduler, now: scheduler.extend(variants, numbers, now))
        return _done(f"added {len(more)} slots; the job has {len(job.plan.slots)}")

    async def _set(self, order: orders.SetLimits) -> Reply:
        limits = {} if order.slots is None else {"slots": order.slots}
        if order.slots is not None:
            self.providers.check_slots(order.slots)
        endpoints = dict(order.endpoints)
        for url in endpoints:
            self._latch("endpoint", url)
            self.fixed_endpoints.add(url)
            self.record.note_model_limit(url, None)
        if limits:
            await self.driver.resize(limits)
        self.record.budget.change(order.cost_usd, order.tokens)
        self._tell(lambda scheduler, now: scheduler.set_limits(now, limits, endpoints))
        return _done("changed the limits")


def chosen_slots(directory: Path, order: orders.Requeue) -> list[int]:
    """Return the indexes of the slots that an order names: of all its globs, or of every slot.

    Raises:
        UsageError: The globs match nothing.
    """
    chosen: list[int] = []
    with JobReader(directory / DATABASE_FILE) as reader:
        for slot in reader.slots():
            error = None if slot.attempt is None else slot.attempt.error
            texts = () if error is None else (error.boundary, error.type, error.fingerprint or "")
            is_slot = not order.slots or any(fnmatchcase(slot.name, g) for g in order.slots)
            is_error = not order.errors or any(
                fnmatchcase(text, glob) for text in texts for glob in order.errors
            )
            if is_slot and is_error:
                chosen.append(slot.index)
    if not chosen:
        globs = ", ".join(map(repr, (*order.slots, *order.errors)))
        raise UsageError(
            f"no slot matches {globs}",
            hint="`bench eval show` lists slots and errors; a slot is TASK#REPLICATION@VARIANT",
        )
    return chosen


def requeued(indexes: Sized, chosen: Sized) -> str:
    """Return in words how many of the chosen slots were requeued."""
    if indexes:
        return f"requeued {len(indexes)} slots"
    return f"requeued nothing: the {len(chosen)} chosen slots have a score, or wait, or run"


def _done(message: str) -> Reply:
    return Reply(ok=True, message=message)


@contextmanager
def signals_to(control: JobControl, say: Callable[[str], None]) -> Generator[None]:
    """Let signals give orders inside the block.

    The first SIGINT drains the job. The second SIGINT, SIGTERM and SIGHUP end what runs. One more
    signal cancels the job's task. `say` gets a sentence for people.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    count = 0

    def receive(number: signal.Signals) -> None:
        nonlocal count
        count += 2 if number != signal.SIGINT and count < 2 else 1
        running = control.driver.scheduler.running
        if count == 1:
            say(f"no further rollout starts; {running} are running; {_HURRY}")
            control.drain(number.name)
        elif count == 2:
            say(f"ending {running} rollouts")
            control.stop(number.name)
        elif task is not None:
            task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # `nohup` ignores SIGHUP.
    earlier = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in earlier:
        loop.add_signal_handler(number, receive, number)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
