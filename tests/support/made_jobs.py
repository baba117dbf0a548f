"""Jobs on disk without a run: rollouts of made trees, the record of the job, and its facts."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import (
    Completion,
    NodeError,
    RewardEvent,
    RolloutNode,
    RolloutRecord,
    RolloutTree,
    Step,
    ToolCall,
    Usage,
    VerifyResult,
)
from benchflow_store import rewards_jsonl
from benchflow_store.database import (
    Commit,
    JobWriter,
    Metric,
    PlannedSlot,
    PlanRevision,
    Projector,
)
from made_rollouts import write_rollout

Rewards = Mapping[str, Mapping[str, Sequence[float | None]]]
"""By variant and task: one for each repeat; `None` is unscored."""


@dataclass(frozen=True)
class Spent:
    """What each rollout reported; `None` is unknown."""

    tokens_in: int | None = 100
    tokens_out: int | None = 10
    cost_usd: float | None = 0.5


def made_tree(
    name: str, task: str, reward: float | None, *, answer: str = "done", usage: Usage | None = None
) -> RolloutTree:
    """Return a linear rollout of two steps with signals of three spaces.

    The second step has the title `answer`. Its reward of the step is `reward`, that of the first
    step is 0.5.
    """
    root = RolloutNode(id="n0")
    first = RolloutNode(id="n1", parent=root, step=_step("s1", "look", usage))
    last = RolloutNode(id="n2", parent=first, step=_step("s2", answer, usage))
    root.children, first.children = [first], [last]
    error = None
    if reward is None:
        error = NodeError(boundary="reward", type="RewardError", message="test.sh ended with 3")
        last.results["reward"] = VerifyResult.unscored("test.sh ended with 3")
    else:
        last.results["reward"] = VerifyResult(reward=reward, events=_signals(reward))
    return RolloutTree(
        rollout_id=name,
        task_id=task,
        root=root,
        index={node.id: node for node in (root, first, last)},
        status="completed",
        error=error,
    )


def _signals(reward: float) -> tuple[RewardEvent, ...]:
    return (
        RewardEvent(source="tool", value=0.5, space="action", granularity="step", step_id="s1"),
        RewardEvent(source="tool", value=reward, space="action", granularity="step", step_id="s2"),
        RewardEvent(source="judge", value=1 - reward, space="reasoning"),
    )


def _step(name: str, title: str, usage: Usage | None) -> Step:
    call = ToolCall(id=f"call-{name}", title=title)
    return Step(id=name, tool_calls=(call,), usage=usage, started_at=1.0, finished_at=2.0)


def write_job(
    jobs: Path,
    name: str,
    rewards: Rewards,
    *,
    baseline: str | None = None,
    spent: Mapping[str, Spent] | None = None,
    pending: int = 0,
    ended: float = 1_000.0,
) -> Path:
    """Write a job whose slots ended at `ended`, with its facts, and return its directory.

    `spent` is by variant. `pending` slots of the first variant have not begun.
    """
    slots: list[PlannedSlot] = []
    commits: list[tuple[PlannedSlot, float | None, Spent]] = []
    for variant, tasks in rewards.items():
        for task, values in tasks.items():
            for repeat, reward in enumerate(values):
                slot = PlannedSlot(f"{variant}/{task}#{repeat}", variant, task, repeat, "sha256:0")
                slots.append(slot)
                commits.append((slot, reward, (spent or {}).get(variant, Spent())))
    first = next(iter(rewards))
    slots += [
        PlannedSlot(f"{first}/open#{n}", first, "open", n, "sha256:0") for n in range(pending)
    ]
    job = jobs / name
    job.mkdir(parents=True)
    plan = PlanRevision(
        config_digest="sha256:1", baseline=baseline, variants={key: {} for key in rewards}
    )

    async def write() -> None:
        async with JobWriter(job / "record.db", name) as writer:
            state = await writer.begin(plan, slots)
            made = [
                _commit(job, index, slot, reward, cost, epoch=state.epoch, ended=ended)
                for index, (slot, reward, cost) in enumerate(commits)
            ]
            async with asyncio.TaskGroup() as group:
                for commit in made:
                    group.create_task(writer.commit(commit))

    (job / "summary.json").write_text(json.dumps({"planned": len(slots)}))
    asyncio.run(write())
    Projector(job, job / "record.db").update()
    return job


def _commit(
    job: Path,
    index: int,
    slot: PlannedSlot,
    reward: float | None,
    spent: Spent,
    *,
    epoch: int,
    ended: float,
) -> Commit:
    rollout = f"{job.name}-{index:03d}__{slot.variant[:8].encode().hex()}"
    usage = None
    if spent.tokens_in is not None and spent.tokens_out is not None:
        halves = spent.tokens_in // 2, spent.tokens_out // 2
        usage = Usage(input_tokens=halves[0], output_tokens=halves[1], cached_tokens=0)
    answer = f"answer of {slot.variant}"
    tree = made_tree(rollout, slot.task, reward, answer=answer, usage=usage)
    began = ended - 100
    directory = write_rollout(tree, job / rollout, started_at=began, finished_at=ended)
    written = RolloutRecord.model_validate_json((directory / "result.json").read_text())
    record = written.model_copy(update={"slot": slot.name, "attempt": 1, "steps": 2, "leaves": 1})
    (directory / "result.json").write_text(record.model_dump_json())
    leaf = tree.index["n2"]
    lines = rewards_jsonl(leaf.id, leaf.results, steps=leaf.steps, ts=1.0)
    (directory / "rewards.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    metrics = {
        "tokens_in": spent.tokens_in,
        "tokens_out": spent.tokens_out,
        "cost_usd": spent.cost_usd,
    }
    completion = Completion(
        job=job.name,
        index=index,
        slot=slot.name,
        attempt=1,
        epoch=epoch,
        rollout=rollout,
        status="scored" if record.is_final else "unscored",
        record=record.model_dump(mode="json"),
        error=record.error,
    )
    known = [
        Metric(key, float(value), measured=True)
        for key, value in metrics.items()
        if value is not None
    ]
    return Commit(completion, started=began, finished=ended, metrics=known, is_last=True)
