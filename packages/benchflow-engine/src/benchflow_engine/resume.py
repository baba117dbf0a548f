"""Resume a rollout that a crash, a kill or a pause cut short."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchflow_contracts import (
    Agent,
    BeganFrom,
    BenchFlowError,
    PhaseEntered,
    ReapPolicy,
    RolloutIdentity,
    SandboxImage,
    SandboxProvider,
    SnapshotError,
    StoreError,
    Task,
    UpstreamAnswer,
    UsageError,
)
from benchflow_kernel import CheckpointManifest, Planes, while_log_locked, write_tree
from benchflow_store import (
    RESUMED_FROM,
    StoredRollout,
    checkpoint_paths,
    earlier_attempt,
    last_attempt,
    later_attempts,
    name_successor,
    prior_calls,
    read_began_from,
    read_trusted_manifest,
    record_from_tree,
    sum_prior,
)

from .config import RunConfig
from .leftovers import remove_directories
from .planes import load_agent, open_provider
from .posthoc.run_inputs import RunInputs
from .preflight import check_agent, check_endpoint
from .rollout import Continuation, RunResult, Subscriber, run_in, write_outcome
from .secrets import with_secrets


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a rollout resumes."""

    began: BeganFrom
    path: Path | None = None
    """The directory of the checkpoint; `None` is the start of the task."""
    manifest: CheckpointManifest | None = None


def was_cut_short(directory: Path) -> bool:
    """Return whether `resume_rollout` has work to continue: the last attempt began and did not end.

    An attempt that failed before its agent ran in the restored world counts as cut short, too.
    A process may still run it. A missing or damaged log gives False.
    """
    stored = StoredRollout(last_attempt(directory))
    try:
        return stored.has_events and _is_unfinished(stored)
    except StoreError:
        return False


async def resume_rollout(  # noqa: PLR0913 - one keyword per part of a run
    directory: Path,
    *,
    out: Path,
    provider: SandboxProvider | None = None,
    config: RunConfig | None = None,
    identity: RolloutIdentity | None = None,
    subscribers: Sequence[Subscriber] = (),
    trust: bool = False,
    prepare: Callable[[Planes], Planes] | None = None,
    on_answer: Callable[[UpstreamAnswer], None] | None = None,
) -> RunResult:
    """Run the rest of the rollout in `directory` as a new attempt in `out`, and return its result.

    The attempt starts from the last good checkpoint: if the agents had ended, it only grades.
    Without a good checkpoint it starts anew, and `record.began_from.reason` says why. If another
    attempt resumed the rollout already, that attempt is resumed. The sandboxes and directories that
    the killed process left are removed first. If a kill left only the summary unwritten, nothing
    runs: the result is that of `directory`.

    Without `provider`, the recorded one is opened. `config` is the recorded one with the secrets of
    this process's variables, unless the caller has it. `identity`, `prepare` and `on_answer` are
    as for `run_in`.

    Raises:
        UsageError: The rollout has ended or runs, its task was changed, a secret is missing, or
            another user ran the rollout and `trust` is not set.
        StoreError: The record is damaged, or cannot be written.
    """
    with ExitStack() as locks:
        directory = _lock_last(directory, locks)
        stored = StoredRollout(directory)
        inputs = RunInputs.read(directory, trust=trust)
        if _has_ended(stored):
            return _write_ended(stored, inputs.task)
        config = config or with_secrets(inputs.config)
        check_agent(config)
        async with AsyncExitStack() as stack:
            if provider is None:
                await check_endpoint(config)
                provider = await stack.enter_async_context(open_provider(config))
            await _remove_leftovers(provider, directory.name)
            point, image = await _choose(stored, inputs.task, load_agent(config), provider, trust)
            name_successor(directory, out)
            try:
                return await run_in(
                    provider,
                    inputs.task,
                    config,
                    directory=out,
                    subscribers=subscribers,
                    identity=identity,
                    continuation=_continuation(point, image),
                    prepare=prepare,
                    on_answer=on_answer,
                )
            finally:
                if image is not None:
                    await provider.discard(image)


async def _remove_leftovers(provider: SandboxProvider, rollout: str) -> None:
    await provider.reap(ReapPolicy(labels=RolloutIdentity(rollout=rollout).labels()))
    await remove_directories()


def _lock_last(directory: Path, locks: ExitStack) -> Path:
    """Lock the log of the last attempt, and return its directory.

    Raises:
        UsageError: The attempt is running, or is being resumed.
    """
    last = last_attempt(directory)
    if StoredRollout(last).has_begun:
        locks.enter_context(while_log_locked(last / "events.jsonl"))
    if last_attempt(directory) == last:
        return last
    # Another process resumed it, and ended, before this one had the lock.
    return _lock_last(directory, locks)


def _has_ended(stored: StoredRollout) -> bool:
    """Return whether the rollout ended and lacks only its summary.

    Raises:
        UsageError: The rollout has its summary.
    """
    if not stored.has_events or _is_unfinished(stored):
        return False
    if stored.record is not None:
        raise UsageError(
            f"rollout {stored.directory.name!r} has ended with status {stored.record.status!r}",
            hint="`bench rollout branch` continues from a checkpoint of a rollout that has ended",
        )
    return True


def _is_unfinished(stored: StoredRollout) -> bool:
    return stored.tree.status in ("running", "cancelled") or _failed_to_start(stored)


def _failed_to_start(stored: StoredRollout) -> bool:
    """Return whether an attempt failed before its agent or grading ran in the restored world."""
    began = stored.tree.meta.get(RESUMED_FROM)
    if stored.tree.status != "failed" or began is None:
        return False
    phases = {event.phase for event in stored.log.events if isinstance(event, PhaseEntered)}
    return BeganFrom.model_validate(began).point != "start" and not phases & {"execute", "verify"}


def _write_ended(stored: StoredRollout, task: Task) -> RunResult:
    tree, directory = stored.tree, stored.directory
    identity = RolloutIdentity.model_validate(tree.meta.get("identity") or {})
    record = record_from_tree(tree, task, stored.config.ran, identity=identity)
    write_tree(tree, directory)
    write_outcome(directory, tree, record, task)
    return RunResult(tree=tree, record=record, directory=directory)


def _continuation(point: ResumePoint, image: SandboxImage | None) -> Continuation:
    if point.path is None or point.manifest is None:
        return Continuation(None, began=point.began)
    recorded = StoredRollout(point.path.parents[1]).calls
    calls = prior_calls(point.manifest, recorded)
    return Continuation(point.path, calls=calls, image=image, began=point.began)


async def _choose(
    stored: StoredRollout, task: Task, agent: Agent, provider: SandboxProvider, trust: bool
) -> tuple[ResumePoint, SandboxImage | None]:
    """Return the last good point, with the image of its checkpoint, which the caller discards."""
    refusals: list[str] = []
    for point in resume_points(stored, task, agent, refusals, trust=trust):
        assert point.path is not None, "a point of a checkpoint has a path"
        try:
            image = await provider.load(point.path / "image")
        except SnapshotError as error:
            refusals.append(f"{point.path.name}: {error}")
            continue
        return replace(point, began=_because(point.began, refusals)), image
    start = BeganFrom(rollout=stored.directory.name, directory=str(stored.directory.resolve()))
    return ResumePoint(_because(start, refusals or ["no checkpoint was saved"])), None


def _because(began: BeganFrom, refusals: Sequence[str]) -> BeganFrom:
    return began.model_copy(update={"reason": "; ".join(refusals) or None})


def resume_points(
    stored: StoredRollout, task: Task, agent: Agent, refusals: list[str], *, trust: bool = False
) -> Iterator[ResumePoint]:
    """Yield the points from which a rollout can resume, the last one first.

    After the rollout's own checkpoints come those of the attempt that it resumed. A checkpoint from
    which an attempt failed to start is left out. The images are not checked. Why a checkpoint is
    left out is added to `refusals`.
    """
    directory = stored.directory
    if not stored.has_events:
        return
    saved: list[tuple[Path, CheckpointManifest]] = []
    failed = _failed_starts(directory)
    for path in checkpoint_paths(directory):
        try:
            manifest = read_trusted_manifest(path, trust=trust)
        except BenchFlowError as error:
            refusals.append(f"{path.name}: {error}")
            continue
        reason = failed.get(path.name) or _refusal(manifest, stored, task, agent)
        if reason is None:
            saved.append((path, manifest))
        else:
            refusals.append(f"{path.name}: {reason}")
    for path, manifest in sorted(saved, key=lambda each: each[1].taken_at, reverse=True):
        yield ResumePoint(_began_from(stored, path, manifest), path, manifest)
    earlier = earlier_attempt(directory, read_began_from(stored.tree.meta))
    if earlier is not None:
        yield from resume_points(StoredRollout(earlier), task, agent, refusals, trust=trust)


def _failed_starts(directory: Path) -> dict[str, str]:
    """Return the checkpoints from which a later attempt failed to start, each with the reason."""
    found: dict[str, str] = {}
    for later in map(StoredRollout, later_attempts(directory)):
        began = read_began_from(later.tree.meta) if later.has_events else BeganFrom()
        if began.rollout == directory.name and began.checkpoint and _failed_to_start(later):
            error = later.tree.error
            why = "" if error is None else f": {error.type}: {error.message}"
            found[began.checkpoint] = f"attempt {later.directory.name!r} could not start{why}"
    return found


def _began_from(stored: StoredRollout, path: Path, manifest: CheckpointManifest) -> BeganFrom:
    return BeganFrom(
        point="grading" if manifest.ended else "checkpoint",
        rollout=stored.directory.name,
        directory=str(stored.directory.resolve()),
        checkpoint=path.name,
        fidelity=manifest.fidelity,
        prior=sum_prior(manifest, stored.calls),
    )


def _refusal(
    manifest: CheckpointManifest, stored: StoredRollout, task: Task, agent: Agent
) -> str | None:
    """Return why a rollout cannot resume from a checkpoint, or `None`."""
    if manifest.task_digest != task.digest:
        return "it is of another version of the task"
    node = stored.tree.index.get(manifest.node)
    if node is None:
        return f"the log does not have its node {manifest.node!r}"
    forked = [n.id for n in node.path if n.branch is not None and n.branch.children > 0]
    if forked and forked[0] != node.id:
        return f"it is below the fork of node {forked[0]!r}, whose branches run again"
    in_files = any(session.snapshot is not None for session in manifest.sessions)
    if in_files and agent.capabilities().session_snapshot == "none":
        return f"agent {agent.name!r} cannot resume its conversation from files"
    return None
