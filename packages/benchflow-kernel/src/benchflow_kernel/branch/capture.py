"""Take a checkpoint: quiesce, one freeze, all layers or none."""

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
