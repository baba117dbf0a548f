"""Taking a checkpoint: quiesce, one freeze, all layers or none."""

import time
from dataclasses import replace

from benchflow_contracts import EnvState, SandboxImage, SnapshotLevel

from benchflow_kernel.faults import shielded, within
from benchflow_kernel.world import CarriedSessions, LiveWorld, World

from .checkpoint import Checkpoint


async def take_checkpoint(
    world: World,
    turn: int,
    level: SnapshotLevel,
    seconds: float,
    sessions: CarriedSessions,
) -> Checkpoint:
    """Capture `world`, whose agents are idle or wait for an answer.

    The model line comes to rest first, then the world's servers, whose rows are read.
    Then the environment, the files and (at `live`) the processes with their sessions are
    captured inside one freeze, so that all layers are of one instant; `sessions` are
    those that lie in files. Nothing is left of a checkpoint that is not whole: what was
    sealed before the fault is discarded, also on cancellation.

    Raises:
        SnapshotError: A layer failed, or it took longer than `seconds`.
        SandboxUnsupportedError: The sandbox has no such level.
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
            await shielded(world.discard(image))
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
        # The pipes are drained before the processes are sealed: what the agent said is
        # then in the session's carry, and only there.
        live = await world.capture() if level == "live" else None

    async with world.quiesced():
        taken.append(await world.sandbox.snapshot(level, while_frozen=read))
    return Checkpoint(turn=turn, image=taken[0], state=state, sessions=sessions, live=live)


async def check_child(world: World, checkpoint: Checkpoint) -> None:
    """Prove a child's world before its agent is prompted: its invariants, and its state.

    A live world runs on from the instant that it was restored, so that its state may
    differ from the checkpoint's by the time it is read; there the invariants decide, and
    the environment has compared what its servers held when it took hold of them.

    Raises:
        EnvironmentError_: An invariant of the manifest does not hold.
        SnapshotError: The environment's state is not the one that was sealed.
    """
    await world.check(checkpoint.state if checkpoint.live is None else None)
