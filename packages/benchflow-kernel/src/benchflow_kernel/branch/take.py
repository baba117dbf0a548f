"""Taking a checkpoint: quiesce, one freeze, all layers or none."""

from contextlib import suppress

from benchflow_contracts import EnvironmentError_, SandboxImage, SnapshotError, SnapshotLevel

from benchflow_kernel.faults import shielded, within
from benchflow_kernel.world import CarriedSessions, World

from .checkpoint import Checkpoint


async def take_checkpoint(
    world: World,
    turn: int,
    level: SnapshotLevel,
    seconds: float,
    sessions: CarriedSessions,
) -> Checkpoint:
    """Capture `world`, whose agents are idle or wait for an answer.

    The model line comes to rest first, and at level `filesystem` the world's servers.
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
            await world.quiesce()
            return await _capture(world, turn, level, sessions, taken)
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
    if level == "live":
        return await _capture_live(world, turn, sessions, taken)
    async with world.quiesced(), world.sandbox.freeze():
        state = await world.query()
        taken.append(await world.sandbox.snapshot(level))
    return Checkpoint(turn=turn, image=taken[0], state=state, sessions=sessions)


async def _capture_live(
    world: World, turn: int, sessions: CarriedSessions, taken: list[SandboxImage]
) -> Checkpoint:
    # The world's servers are not quiesced: their children would stay so for ever. Where
    # their state can therefore not be read, it is in the image's memory all the same.
    async with world.sandbox.freeze():
        state = None
        with suppress(EnvironmentError_):
            state = await world.query()
        # The pipes are drained before the processes are sealed: what the agent said is
        # then in the session's carry, and only there.
        live = await world.carry()
        taken.append(await world.sandbox.snapshot("live"))
    return Checkpoint(turn=turn, image=taken[0], state=state, sessions=sessions, live=live)


async def check_child(world: World, checkpoint: Checkpoint) -> None:
    """Prove a child's world before its agent runs: its invariants, then its state.

    A live world runs on from the instant that it was restored, so that its state may
    differ from the checkpoint's by the time it is read; there the invariants decide.

    Raises:
        EnvironmentError_: An invariant of the manifest does not hold.
        SnapshotError: The environment's state is not the one that was sealed.
    """
    await world.check()
    if checkpoint.live is None and await world.query() != checkpoint.state:
        raise SnapshotError("the child's environment does not have the state of its checkpoint")
