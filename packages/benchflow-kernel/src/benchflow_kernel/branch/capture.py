"""Capture a world as a checkpoint, at the best possible fidelity."""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Final

from benchflow_contracts import (
    EnvironmentError_,
    EnvState,
    Fidelity,
    OutsideState,
    SandboxCapabilities,
    SandboxImage,
    SandboxUnsupportedError,
    SnapshotError,
    SnapshotLevel,
)
from benchflow_contracts.pausing import pause_switch

from benchflow_kernel.errors import FidelityError
from benchflow_kernel.faults import run_shielded, within
from benchflow_kernel.world import CarriedSessions, LiveWorld, World

from .checkpoint import Checkpoint

RANK: Final[dict[Fidelity, int]] = {"replay": 0, "state": 1, "live": 2}
"""How much of the parent's world a fork of each fidelity keeps. More is higher."""

_TRIES: Final = 3

_PAUSE_SEC: Final = 0.1

_MID_TURN = (
    "the fork is in the middle of a turn, where the agent's session cannot be"
    " restored from its files; each child starts from the last checkpoint and gets the same prompt"
)


async def take_checkpoint(
    world: World,
    turn: int,
    level: SnapshotLevel,
    seconds: float,
    sessions: CarriedSessions,
) -> Checkpoint:
    """Capture `world`, whose agents are idle or wait for an answer.

    Wait until the model route is idle, then quiesce the environment's servers and read their
    state. Then capture the environment, the files and (at `live`) the processes with their
    sessions in one freeze, so that all layers are of one instant. `sessions` are the sessions
    in files. If a layer fails, or on cancellation, the captured layers are discarded.

    Raises:
        SnapshotError: A layer failed, or the capture took longer than `seconds`.
        SandboxUnsupportedError: The sandbox does not support the level.
    """
    images: list[SandboxImage] = []
    try:
        async with within(seconds, "snapshot", "the checkpoint"):
            start = time.monotonic()
            await world.quiesce()
            idle = time.monotonic()
            async with pause_switch().uninterrupted():
                checkpoint = await _capture(world, turn, level, sessions, images)
            spans = {"quiesce": idle - start, "checkpoint": time.monotonic() - idle}
            spans |= checkpoint.image.took_sec
            return replace(checkpoint, took_sec={k: round(v, 6) for k, v in spans.items()})
    except BaseException:
        for image in images:
            await run_shielded(world.discard(image))
        raise


async def _capture(
    world: World,
    turn: int,
    level: SnapshotLevel,
    sessions: CarriedSessions,
    images: list[SandboxImage],
) -> Checkpoint:
    state: EnvState | None = None
    outside: OutsideState | None = None
    live: LiveWorld | None = None

    async def read() -> None:
        nonlocal state, outside, live
        state = await world.query()
        outside = await world.capture_outside()
        # Empty the pipes before the processes are captured: the agent's output is then
        # in the session's state, and only there.
        live = await world.capture() if level == "live" else None

    async with world.while_quiesced():
        images.append(await world.sandbox.snapshot(level, while_frozen=read))
    return Checkpoint(
        turn=turn, image=images[0], state=state, sessions=sessions, outside=outside, live=live
    )


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


def _limited(captured: Captured) -> Captured:
    """Return `captured` with a fidelity that is not above that of a world outside the sandbox."""
    limit = None if captured.checkpoint is None else captured.checkpoint.outside
    if limit is None or RANK[limit.kind] >= RANK[captured.fidelity]:
        return captured
    how = "a repetition of its calls" if limit.kind == "replay" else "a copy of its state"
    reason = f"{captured.reason}; but the world outside the sandbox is restored by {how}"
    return replace(captured, fidelity=limit.kind, reason=reason)


class FidelitySelector:
    """Captures the worlds of a rollout: at `live`, else at `state`, else at `replay`."""

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
        captured = _limited(await self._capture_best(world, turn, mid_turn=mid_turn))
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
        result = await self._capture_idle(world, turn)
        return result if isinstance(result, Checkpoint) else None

    async def capture_live(self, world: World, turn: int) -> Checkpoint | None:
        """Capture `world` with its processes; return None if the sandbox or an agent cannot."""
        result = await self._capture_live(world, turn)
        return result if isinstance(result, Checkpoint) else None

    async def capture_ended(
        self, world: World, turn: int, *, needs_processes: bool
    ) -> Captured | None:
        """Capture `world`, whose agents have ended, for a later grading.

        Return None if the grading needs processes, and they cannot be captured.

        Raises:
            SnapshotError: The files could not be captured.
        """
        if needs_processes:
            live = await self.capture_live(world, turn)
            return None if live is None else Captured("live", "processes to grade", live)
        state = await take_checkpoint(world, turn, "filesystem", self._seconds, {})
        return Captured("state", "the agents had ended", state)

    async def _capture_best(self, world: World, turn: int, *, mid_turn: bool) -> Captured:
        live = await self._capture_live(world, turn)
        if isinstance(live, Checkpoint):
            engine = self._capabilities.live_engine or "the sandbox"
            reason = f"files, services and agents of one instant, through {engine}"
            return Captured("live", reason, live)
        if mid_turn:
            return Captured("replay", f"not live: {live}; not state: {_MID_TURN}", None)
        state = await self._capture_idle(world, turn)
        if isinstance(state, Checkpoint):
            return Captured("state", f"not live: {live}; the turn had ended", state)
        reason = f"not live: {live}; not state: {state}; each child repeats the turns since"
        return Captured("replay", reason, None)

    async def _capture_live(self, world: World, turn: int) -> Checkpoint | str:
        """Return the checkpoint, or the reason that there is none. Retry temporary failures."""
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

    async def _capture_idle(self, world: World, turn: int) -> Checkpoint | str:
        """Return the checkpoint, or the reason a session cannot be saved in files."""
        try:
            async with within(self._seconds, "snapshot", "describing the sessions"):
                await world.quiesce()
                sessions = await world.sessions.snapshot()
        except SnapshotError as error:
            return str(error)
        return await take_checkpoint(world, turn, "filesystem", self._seconds, sessions)
