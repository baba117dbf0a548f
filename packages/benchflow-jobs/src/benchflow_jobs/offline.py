"""Changes to a job that no process runs."""

from contextlib import AsyncExitStack
from pathlib import Path

from benchflow_contracts import UsageError
from benchflow_store.database import DATABASE_FILE, JobWriter, Projector

from .begin import extended, planned_before
from .control import chosen_slots, requeued
from .hold import held
from .orders import Extend, Reply, Requeue
from .planning import write_plan
from .preflight import Providers
from .runner import open_record


async def change_job(directory: Path, order: Requeue | Extend, *, trust: bool = False) -> Reply:
    """Requeue slots of a job, or extend it. A resume runs what was added.

    Raises:
        UsageError: The order does not fit the job, or another process runs the job.
        StoreError: The record cannot be written.
    """
    if not (directory / DATABASE_FILE).exists():
        raise UsageError(f"job {directory.name!r} has no record", hint="resume the job first")
    with held(directory):
        async with JobWriter(directory / DATABASE_FILE, directory.name) as writer:
            if isinstance(order, Requeue):
                reply = await _requeue(writer, directory, order)
            else:
                reply = await _extend(writer, directory, order, trust=trust)
            # The writer has a new epoch, which the projected files show.
            Projector(directory, directory / DATABASE_FILE, epoch=writer.epoch).update()
            return reply


async def _extend(writer: JobWriter, directory: Path, order: Extend, *, trust: bool) -> Reply:
    before = planned_before(directory, trust=trust)
    after = await extended(before, order)
    added = len(after.plan.slots) - len(before.plan.slots)
    if added:
        async with AsyncExitStack() as blocks:
            await Providers(blocks).open_for(after)
        write_plan(directory, after.plan)
    await open_record(writer, after.plan, directory)
    if not added:
        return Reply(ok=True, message="the job has all of this already")
    return Reply(ok=True, message=f"added {added} slots; the job has {len(after.plan.slots)}")


async def _requeue(writer: JobWriter, directory: Path, order: Requeue) -> Reply:
    state = await writer.begin()
    chosen = set(chosen_slots(directory, order))
    given_up = {each.index for each in state.slots if each.status in {"failed", "skipped_pruned"}}
    indexes = sorted(chosen & given_up)
    if indexes:
        await writer.requeue(indexes)
    return Reply(ok=True, message=requeued(indexes, chosen))
