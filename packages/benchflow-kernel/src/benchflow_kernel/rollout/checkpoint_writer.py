"""Save checkpoints, which outlive their rollout."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchflow_contracts import (
    BenchFlowError,
    Fidelity,
    RolloutNode,
    SandboxProvider,
    StoreError,
)

from benchflow_kernel.branch import Checkpoint
from benchflow_kernel.faults import within
from benchflow_kernel.resolve import Plan

from .branch_start import Position
from .checkpoint_manifest import (
    CHECKPOINT_FILE,
    HOME,
    IMAGE,
    CheckpointManifest,
    SavedExchange,
    SavedStep,
    SavedTurn,
    saved_checkpoints,
    session_of,
)

_MB = 1024 * 1024


class CheckpointWriter:
    """Writes checkpoints below a rollout's directory, completely or not at all.

    Over the budget the oldest ones are deleted. An error goes to `leaks`, and the rollout
    continues.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Path | None,
        leaks: list[BenchFlowError],
        node: Callable[[str], RolloutNode],
    ) -> None:
        self._node = node
        self._plan = plan
        self._policy = plan.config.keep
        self._home = None if directory is None else directory / HOME
        self._leaks = leaks

    @property
    def saves_every_turn(self) -> bool:
        """Whether the policy saves every turn boundary, not only forks."""
        return self._policy.which == "all" and self._home is not None

    async def save(self, position: Position, fidelity: Fidelity, *, fork: bool) -> None:
        """Save the checkpoint of `position` if the policy requires it."""
        if (
            self._home is None
            or self._policy.which == "none"
            or not (fork or self.saves_every_turn)
        ):
            return
        try:
            await self._write_in_time(self._home, position, fidelity)
            self._drop_oldest(self._home)
        except (BenchFlowError, OSError) as error:
            self._leaks.append(_not_saved(position.node, error))

    async def save_now(self, position: Position, fidelity: Fidelity) -> None:
        """Save the checkpoint of `position`, whatever the policy and its budget are.

        Raises:
            StoreError: It cannot be saved.
        """
        try:
            if self._home is None:
                raise StoreError("the rollout has no directory")
            await self._write_in_time(self._home, position, fidelity)
        except (BenchFlowError, OSError) as error:
            raise _not_saved(position.node, error) from error

    async def _write_in_time(self, home: Path, position: Position, fidelity: Fidelity) -> None:
        checkpoint = position.checkpoint
        assert checkpoint is not None, "the caller has a checkpoint"
        seconds = self._plan.config.deadlines.provision
        async with within(seconds, "snapshot", "saving a checkpoint"):
            await self._write(home, position, checkpoint, fidelity)

    def report(self, node: str, error: BenchFlowError) -> None:
        """Report that the checkpoint of `node` could not be taken. The rollout continues."""
        self._leaks.append(_not_saved(node, error))

    async def _write(
        self, home: Path, position: Position, checkpoint: Checkpoint, fidelity: Fidelity
    ) -> None:
        final = _unused_path(home, position.node)
        staging = home / f".{final.name}.part"
        try:
            staging.mkdir(parents=True)
            await self._provider.save(checkpoint.image, staging / IMAGE)
            path = self._node(position.node).path
            manifest = _manifest(self._plan, position, checkpoint, fidelity, path)
            sealed = self._plan.planes.seal(manifest.model_dump(mode="json", exclude={"seal"}))
            text = json.dumps(sealed, indent=1)
            _write_durably(staging / CHECKPOINT_FILE, text.encode())
            staging.replace(final)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise

    @property
    def _provider(self) -> SandboxProvider:
        return self._plan.planes.provider

    def _drop_oldest(self, home: Path) -> None:
        paths = [path for path, _ in saved_checkpoints(home.parent)]
        sizes = {path: _size(path) for path in paths}
        while paths and sum(sizes[path] for path in paths) > self._policy.budget_mb * _MB:
            shutil.rmtree(paths.pop(0))


def _not_saved(node: str, error: Exception) -> StoreError:
    return StoreError(f"the checkpoint of node {node!r} was not saved: {error}")


def _unused_path(home: Path, node: str) -> Path:
    """Return an unused name: a resumed node may be captured again."""
    names = (node if at == 1 else f"{node}.{at}" for at in range(1, 1000))
    return next(path for name in names if not (path := home / name).exists())


def _manifest(
    plan: Plan,
    position: Position,
    checkpoint: Checkpoint,
    fidelity: Fidelity,
    path: Sequence[RolloutNode],
) -> CheckpointManifest:
    live = checkpoint.live
    sessions = [session_of(role, snapshot) for role, snapshot in checkpoint.sessions.values()]
    if live is not None:
        sessions += [session_of(role, carry) for role, carry in live.sessions.values()]
    return CheckpointManifest(
        rollout_id=plan.rollout_id,
        task_id=plan.task.id,
        task_digest=plan.task.digest,
        node=position.node,
        turn=position.turn,
        checkpoint_turn=checkpoint.turn,
        ended=position.ended,
        ungraded_step=position.ungraded_step,
        fidelity=fidelity,
        ref=checkpoint.image.ref,
        layers=checkpoint.layers,
        image=checkpoint.image,
        state=checkpoint.state,
        outside=checkpoint.outside,
        sessions=tuple(sessions),
        services=None if live is None else live.services,
        schedule=tuple(
            SavedTurn(
                scene=turn.scene,
                role=turn.role.name,
                agent=turn.role.agent,
                model=turn.role.model,
                prompt=turn.prompt,
                task_step=turn.task_step,
            )
            for turn in position.schedule
        ),
        script=tuple(
            SavedExchange(turn=e.turn, ask=e.ask, answer=e.answer) for e in position.script
        ),
        calls=position.calls,
        calls_before=position.calls_before,
        call=position.call,
        history=tuple(_saved_steps(plan, path)),
        taken_at=time.time(),
    )


def _saved_steps(plan: Plan, path: Sequence[RolloutNode]) -> Iterator[SavedStep]:
    for node in path:
        results = node.results if plan.task.steps else {}
        if node.step is not None or results or node.error is not None:
            yield SavedStep(step=node.step, label=node.label, results=results, error=node.error)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _size(path: Path) -> int:
    """Return the bytes on disk; holes and shared blocks count as the file system reports."""
    return sum(entry.lstat().st_blocks * 512 for entry in path.rglob("*"))
