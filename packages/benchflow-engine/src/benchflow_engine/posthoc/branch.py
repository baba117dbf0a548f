"""Resume from a saved checkpoint of a finished rollout, with changes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchflow_contracts import RolloutNode, UsageError, Value
from benchflow_kernel import CheckpointManifest, Planes, value_of
from benchflow_store import new_rollout_id, prior_calls, read_trusted_manifest

from benchflow_engine.config import RunConfig
from benchflow_engine.flags import run_config
from benchflow_engine.planes import open_provider
from benchflow_engine.preflight import check_agent, check_endpoint
from benchflow_engine.rollout import Continuation, RunResult, Subscriber, run_in
from benchflow_engine.secrets import with_secrets

from .faults import FaultyWorld
from .run_inputs import RunInputs


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of a continuation, compared with the original rollout."""

    flags: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Flags of `bench run`, by name: another agent, model, skill set or branch policy."""
    prompt: str | None = None
    """One prompt instead of the remaining turns."""
    faults: Sequence[str] = ()
    """Shell commands that root runs in the world right before its agent continues."""


@dataclass(frozen=True, slots=True)
class BranchOutcome:
    """The continuations of one node."""

    results: Sequence[RunResult]

    @property
    def value(self) -> Value | None:
        """V of the original node, over the scored continuations."""
        root = RolloutNode(id="node")
        root.children = [result.tree.root for result in self.results]
        return value_of(root)


async def branch_rollout(
    inputs: RunInputs,
    kept: Path,
    change: Change = Change(),
    *,
    n: int = 1,
    concurrency: int = 2,
    jobs_dir: Path | None = None,
    subscribers: Sequence[Subscriber] = (),
    trust: bool = False,
) -> BranchOutcome:
    """Run `n` rollouts from the saved checkpoint in the directory `kept`.

    Each is a separate rollout, whose record names the original rollout and node. Options that
    `change` does not name are unchanged, except that continuations fork only if `change` says
    so. A failed continuation has no reward and does not count in the mean. A checkpoint that
    was not saved by this user's runs is refused without `trust`.

    Raises:
        BenchFlowError: The checkpoint, an option or the task is wrong; nothing has run.
    """
    if n < 1 or concurrency < 1:
        raise UsageError("a branch needs at least one continuation, and one at a time")
    config = _changed(inputs.config, change)
    check_agent(config)
    manifest = read_trusted_manifest(kept, trust=trust)
    _check_skills(manifest, config, change)
    slots = asyncio.Semaphore(concurrency)
    prepare = partial(_break, commands=tuple(change.faults)) if change.faults else None
    calls = prior_calls(manifest, inputs.stored.calls)
    continuation = Continuation(kept, change.prompt, calls=calls)
    await check_endpoint(config)
    async with open_provider(config) as provider:

        async def one() -> RunResult:
            name = new_rollout_id(inputs.task.id)
            async with slots:
                return await run_in(
                    provider,
                    inputs.task,
                    config,
                    directory=None if jobs_dir is None else jobs_dir / name,
                    subscribers=subscribers,
                    continuation=continuation,
                    prepare=prepare,
                )

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one()) for _ in range(n)]
    return BranchOutcome([task.result() for task in tasks])


def _changed(config: RunConfig, change: Change) -> RunConfig:
    """Return the configuration of the continuations. They fork only if `change` has a policy."""
    forks = change.flags.get("branch") is not None
    policy = config.branch
    if policy is not None:
        policy = policy.model_copy(update={"then": None}) if forks else None
    was = config.model_copy(update={"branch": policy})
    return with_secrets(run_config(was, **{"keep": "none", **change.flags}))


def _check_skills(kept: CheckpointManifest, config: RunConfig, change: Change) -> None:
    """Refuse new skills for a live process, which has read its skills already."""
    held = [each for each in kept.sessions if each.carry is not None]
    if "skills_dir" in change.flags and any(each.agent == config.agent.label for each in held):
        raise UsageError(
            f"the live process of agent {config.agent.label!r} was started with its skills",
            hint="resume from a checkpoint of session files, or with another agent",
        )


def _break(planes: Planes, *, commands: Sequence[str]) -> Planes:
    agents = {name: FaultyWorld(agent, commands) for name, agent in planes.agents.items()}
    return replace(planes, agents=agents)
