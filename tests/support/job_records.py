"""Plans, attempts and a writer program for the tests of the record database.

As a program, it commits the first pending slots of a database. It tries a failed commit once more.
It prints `committed INDEX` after each durable commit, and `failed INDEX ERROR` after each error:
`python job_records.py DATABASE SLOTS AT_ONCE COMMITS [step]`. With `step`, it reads a line of
standard input before each slot.
"""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from benchflow_contracts import Completion, Dispatch, NodeError, RolloutRecord, StoreError
from benchflow_store.database import (
    ARTIFACTS_DIR,
    UNCOMPARED,
    ArtifactRef,
    Commit,
    EventRow,
    JobReader,
    JobWriter,
    LocalEvidenceStore,
    Metric,
    PlannedSlot,
    PlanRevision,
    Projector,
    comparable,
)

PLAN = PlanRevision(
    config_digest="sha256:1", variants={"a": {"model": "m1"}, "b": {}}, config={"seed": 7}
)


def planned(count: int, first: int = 0) -> list[PlannedSlot]:
    return [
        PlannedSlot(
            name=f"{'ab'[i % 2]}/task-{i // 2}#0",
            variant="ab"[i % 2],
            task=f"task-{i // 2}",
            repeat=0,
            task_digest=f"sha256:{i // 2:064x}",
        )
        for i in range(first, first + count)
    ]


def scored_record(dispatch: Dispatch) -> RolloutRecord:
    """Return the record of an attempt with reward 1."""
    return RolloutRecord(
        rollout_id=dispatch.rollout,
        task_id="task",
        task_digest="sha256:0",
        agent="oracle",
        model=None,
        sandbox="local",
        status="completed",
        reward=1.0,
        finished_at=1_000.5,
        slot=dispatch.slot,
    )


def ended(
    index: int,
    *,
    scored: bool = True,
    attempt: int = 1,
    epoch: int = 1,
    reward: float = 1.0,
    last: bool = False,
    rows: int = 2,
    rollout: str | None = None,
    events: tuple[EventRow, ...] | None = None,
) -> Commit:
    """Return an attempt that has ended, with a rollout id that shows which one it is."""
    slot = planned(1, index)[0]
    name = rollout or f"{slot.task}__{index:04x}{attempt:02x}{epoch:02x}"
    record = RolloutRecord(
        rollout_id=name,
        task_id=slot.task,
        task_digest=slot.task_digest,
        agent="oracle",
        model=None,
        sandbox="local",
        status="completed" if scored else "failed",
        reward=reward if scored else None,
        finished_at=1_000.5,
        slot=slot.name,
    )
    error = NodeError(boundary="sandbox", type="CapacityError", message="no room: ünï\0code")
    completion = Completion(
        job="job",
        index=index,
        slot=slot.name,
        attempt=attempt,
        epoch=epoch,
        rollout=name,
        status="scored" if scored else "unscored",
        record=record.model_dump(mode="json"),
        error=None if scored else error,
    )
    if events is None:
        events = tuple(EventRow("step", {"number": n, "text": "ü"}, 1.25 * n) for n in range(rows))
    return Commit(
        completion,
        started=900.25,
        finished=1_000.5,
        metrics=[Metric("reward", reward), Metric("tokens_in", 100.0, measured=True)],
        events=events,
        refs=[ArtifactRef(f"part-{n}", f"{index * 100 + n:064x}", n) for n in range(rows)],
        fingerprint=None if scored else "f1",
        is_last=last,
    )


def artifact_of(index: int) -> bytes:
    """Return the bytes of the one artifact of a slot, the same in every run."""
    return f"the artifact of slot {index}".encode()


async def write_pending(
    database: Path, count: int, at_once: int, commits: int, *, step: bool = False
) -> None:
    """Commit at most `commits` pending slots, some at once, and project the facts.

    An attempt stores its artifact before its commit names it.
    """
    store = LocalEvidenceStore(database.parent / ARTIFACTS_DIR)
    async with JobWriter(database, "job") as writer:
        state = await writer.begin(PLAN, planned(count), now=1.0)
        store.remove_unfinished()
        pending = [each.index for each in state.slots if each.status == "pending"]
        waiting = iter(pending[:commits])

        async def work() -> None:
            for index in waiting:
                if step:
                    await asyncio.to_thread(sys.stdin.readline)
                for _ in range(2):
                    try:
                        data = artifact_of(index)
                        ref = ArtifactRef("log", await store.put(data), len(data))
                        commit = ended(index, epoch=state.epoch)
                        await writer.commit(replace(commit, refs=[ref]))
                    except StoreError as error:
                        print("failed", index, type(error).__name__, flush=True)
                    else:
                        print("committed", index, flush=True)
                        break

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
    Projector(database.parent, database).update()


def check_whole(database: Path, committed: set[int]) -> None:
    """Require each acknowledged slot once, and no contradiction."""
    with JobReader(database) as reader:
        assert reader.check_integrity() == []
        assert reader.contradictions() == []
        slots = list(reader.slots())
        done = {slot.index for slot in slots if slot.status == "completed"}
        assert committed <= done
        rollouts = [slot.attempt.rollout for slot in slots if slot.attempt is not None]
        assert len(set(rollouts)) == len(rollouts)
        counted = [each.index for each in reader.attempts() if each.counted]
        assert sorted(counted) == sorted(done)


def comparable_facts(job: Path) -> dict[str, list[dict[str, object]]]:
    """Return the projected lines of a job without times, ids and measured costs."""
    return {
        name: comparable(name, map(json.loads, (job / name).read_text("utf-8").splitlines()))
        for name in UNCOMPARED
    }


def unfinished_files(job: Path) -> list[Path]:
    """Return the files that a killed process left, and that nothing reads."""
    return [path for path in job.rglob("*") if ".tmp" in path.name]


if __name__ == "__main__":
    numbers = map(int, sys.argv[2:5])
    asyncio.run(write_pending(Path(sys.argv[1]), *numbers, step=len(sys.argv) > 5))
