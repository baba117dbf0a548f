"""Capture a world as a checkpoint, at the best possible fidelity."""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Final

from benchflow_contracts import (
    EnvironmentError_,
    EnvState,
    Fidelity,
    SandboxCapabilities,
    SandboxImage,
    SandboxUnsupportedError,
    SnapshotError,
    SnapshotLevel,
)

from benchflow_kernel.errors import FidelityError
from benchflow_kernel.faults import run_shielded, within
from benchflow_kernel.world import CarriedSessions, LiveWorld, World

from .checkpoint import Checkpoint

RANK: Final[dict[Fidelity, int]] = {"replay": 0, "state": 1, "live": 2}

_TRIES: Final = 3

_PAUSE_SEC: Final = 0.1

_MID_TURN = (
    "the question came in the middle of a turn, where the agent's session cannot be carried by"
    " its files; each child got the last checkpoint and the same prompt again"
)


async def take_checkpoint(
    world: World,
    turn: int,
    level: SnapshotLevel,
    seconds: float,
    sessions: CarriedSessions,
) -> Checkpoint:
    """Capture `world`, whose agents are idle or wait for an answer.

    First the model route is idle, then the environment's servers, whose state is read. Then
    the environment, the files and (at `live`) the processes with their sessions are captured
    in one freeze, so that all layers are of one instant. `sessions` are the sessions in
    files. If a layer fails, or on cancellation, the layers sealed before are discarded.

    Raises:
        SnapshotError: A layer failed, or the capture took longer than `seconds`.
        SandboxUnsupportedError: The sandbox does not support the level.
    """
    taken: list[SandboxImage] = []
    try:
        async with within(seconds, "snapshot", "the checkpoint"):
            began = time.monotonic()
            await world.quiesce()
            rested = time.monotonic()
            made = await _capture(world, turn, level, sessions, taken)
            took = {"quiesce": rested - began, "checkpoint": time.monotonic() - rested}
            took |= made.image.took_sec
            return replace(made, took_sec={k: round(v, 6) for k, v in took.items()})
    except BaseException:
        for image in taken:
            await run_shielded(world.discard(image))
        raise


async def _capture(
    world: World,
    turn: int,
    level: SnapshotLevel,
    sessions: CarriedSessions,
    taken: list[SandboxImage],
) -> Checkpoint:
    state: EnvState | None = None
    live: LiveWorld | None = None

    async def read() -> None:
        nonlocal state, live
        state = await world.query()
        # The pipes are emptied before the processes are sealed: the agent's output is
        # then in the session's state, and only there.
        live = await world.capture() if level == "live" else None

    async with world.quiesced():
        taken.append(await world.sandbox.snapshot(level, while_frozen=read))
    return Checkpoint(turn=turn, image=taken[0], state=state, sessions=sessions, live=live)


async def check_child(world: World, checkpoint: Checkpoint) -> None:
    """Check a child's world before its agent gets a prompt: its invariants and its state.

    A live world runs from the moment of its restore, so its state may differ from the
    checkpoint when it is read. There only the invariants decide; the environment compared
    its servers' state when it reattached to them.

    Raises:
        EnvironmentError_: An invariant of the manifest does not hold.
        SnapshotError: The environment's state differs from the checkpoint.
    """
    await world.check(checkpoint.state if checkpoint.live is None else None)


@dataclass(frozen=True, slots=True)
class Captured:
    """The fidelity that a fork reached."""

    fidelity: Fidelity
    reason: str
    checkpoint: Checkpoint | None
    """`None` at `replay`: children start from the last checkpoint."""


class FidelitySelector:
    """Takes checkpoints of a rollout's worlds: `live`, else `state`, else `replay`."""

    def __init__(self, capabilities: SandboxCapabilities, seconds: float) -> None:
        self._capabilities = capabilities
        self._seconds = seconds

    async def capture(
        self, world: World, turn: int, *, mid_turn: bool, require: Fidelity | None
    ) -> Captured:
        """Capture `world` at the best possible fidelity.

        Raises:
            FidelityError: The fidelity `require` is not available; nothing was captured.
            SnapshotError: The files could not be captured.
        """
        captured = await self._best(world, turn, mid_turn=mid_turn)
        if require is not None and RANK[captured.fidelity] < RANK[require]:
            if captured.checkpoint is not None:
                await run_shielded(world.discard(captured.checkpoint.image))
            raise FidelityError(
                f"fidelity {require!r} is not available: {captured.reason}",
                hint="run `bench doctor` and `bench agent probe`, or require a lower fidelity",
            )
        return captured

    async def capture_base(self, world: World, turn: int) -> Checkpoint | None:
        """Capture `world` at a turn boundary, for later forks that replay from here.

        Return None if a session cannot be saved in files: then the last checkpoint stays the base.
        """
        taken = await self._at_rest(world, turn)
        return taken if isinstance(taken, Checkpoint) else None

    async def _best(self, world: World, turn: int, *, mid_turn: bool) -> Captured:
        live = await self._live(world, turn)
        if isinstance(live, Checkpoint):
            engine = self._capabilities.live_engine or "the sandbox"
            reason = f"files, services and agents of one instant, through {engine}"
            return Captured("live", reason, live)
        if mid_turn:
            return Captured("replay", f"not live: {live}; not state: {_MID_TURN}", None)
        state = await self._at_rest(world, turn)
        if isinstance(state, Checkpoint):
            return Captured("state", f"not live: {live}; the turn had ended", state)
        reason = f"not live: {live}; not state: {state}; each child got the turns since again"
        return Captured("replay", reason, None)

    async def _live(self, world: World, turn: int) -> Checkpoint | str:
        """Return the checkpoint, or the reason for none. Temporary causes are tried again."""
        if "live" not in self._capabilities.snapshot_levels:
            return self._capabilities.notes.get("live", "the sandbox has no live snapshots")
        for attempt in range(_TRIES):
            try:
                return await take_checkpoint(
                    world, turn, "live", self._seconds, world.sessions.unopened
                )
            except (SnapshotError, SandboxUnsupportedError, EnvironmentError_) as error:
                if not error.retryable or attempt + 1 == _TRIES:
                    return str(error)
            await asyncio.sleep(_PAUSE_SEC * 2**attempt)
        raise AssertionError("unreachable")

    async def _at_rest(self, world: World, turn: int) -> Checkpoint | str:
        """Return the checkpoint, or the reason a session cannot be saved in files."""
        try:
            async with within(self._seconds, "snapshot", "describing the sessions"):
                await world.quiesce()
                sessions = await world.sessions.snapshot()
        except SnapshotError as error:
            return str(error)
        return await take_checkpoint(world, turn, "filesystem", self._seconds, sessions)
