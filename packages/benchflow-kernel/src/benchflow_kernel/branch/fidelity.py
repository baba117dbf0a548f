"""Select the best possible fidelity of a checkpoint, and say why it is not better."""

import asyncio
from dataclasses import dataclass
from typing import Final

from benchflow_contracts import (
    EnvironmentError_,
    Fidelity,
    SandboxCapabilities,
    SandboxUnsupportedError,
    SnapshotError,
)

from benchflow_kernel.errors import FidelityError
from benchflow_kernel.faults import shielded, within
from benchflow_kernel.world import World

from .capture import take_checkpoint
from .checkpoint import Checkpoint

RANK: Final[dict[Fidelity, int]] = {"replay": 0, "state": 1, "live": 2}
_TRIES: Final = 3
_PAUSE_SEC: Final = 0.1

_MID_TURN = (
    "the question came in the middle of a turn, where the agent's session cannot be carried by"
    " its files; each child got the last checkpoint and the same prompt again"
)


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
                await shielded(world.discard(captured.checkpoint.image))
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
