"""A checkpoint: the world at the start of a turn."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from benchflow_contracts import EnvState, Model, SandboxImage, SnapshotError

from benchflow_kernel.faults import within
from benchflow_kernel.world import CarriedSessions, World


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a child starts from."""

    turn: int
    """The turn before whose prompt it was taken."""
    image: SandboxImage
    state: EnvState | None
    """What the environment of a child must show before its agent runs."""
    sessions: CarriedSessions

    @property
    def layers(self) -> Mapping[str, str]:
        """The digest of each layer that there is."""
        layers = {"sandbox": self.image.digest}
        if self.state is not None:
            layers["environment"] = _digest(self.state)
        if self.sessions:
            snapshots = [snapshot for _, (_, snapshot) in sorted(self.sessions.items())]
            layers["session"] = _digest(*snapshots)
        return layers


async def take_checkpoint(world: World, turn: int, seconds: float) -> Checkpoint | None:
    """Capture `world` between two turns, or return `None` when a session cannot be carried.

    The agents are idle. Their sessions write their files first. Then the world's servers
    are quiesced, and inside one freeze the environment is read and the files are sealed,
    so that all layers are of one instant.

    Raises:
        SnapshotError: A layer failed, or it took longer than `seconds`.
    """
    async with within(seconds, "snapshot", "the checkpoint"):
        try:
            sessions = await world.sessions.snapshot()
        except SnapshotError:
            return None
        async with world.quiesced(), world.sandbox.freeze():
            state = await world.query()
            image = await world.sandbox.snapshot("filesystem")
    return Checkpoint(turn=turn, image=image, state=state, sessions=sessions)


async def check_invariant(world: World, checkpoint: Checkpoint) -> None:
    """Compare a child's world with its checkpoint, before an agent runs in it.

    Raises:
        SnapshotError: The environment's state is not the one that was sealed.
    """
    state = await world.query()
    if state != checkpoint.state:
        raise SnapshotError("the child's environment does not have the state of its checkpoint")


def _digest(*models: Model) -> str:
    total = hashlib.sha256()
    for model in models:
        total.update(model.model_dump_json().encode())
    return f"sha256:{total.hexdigest()}"
