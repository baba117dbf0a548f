"""A checkpoint: one world at one instant, in three layers."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchflow_contracts import Ask, EnvState, Model, SandboxImage

from benchflow_kernel.world import CarriedSessions, LiveWorld


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The start of a child: environment, files, and sessions or processes."""

    turn: int
    """The turn before whose prompt it was taken, or during which if `ask` is set."""
    image: SandboxImage
    state: EnvState | None
    """The environment's state at that instant."""
    sessions: CarriedSessions
    """Idle sessions in files, which a new agent process resumes."""
    live: LiveWorld | None = None
    """Services and sessions that continue in the image; `None` at level `filesystem`."""
    took_sec: Mapping[str, float] = field(default_factory=dict[str, float])
    """As `Checkpointed.took_sec`."""
    from_disk: bool = False
    """Whether another rollout took it, whose agents may have had other prompts or tools."""

    @property
    def ask(self) -> Ask | None:
        """The open question, if the checkpoint was taken during a turn."""
        carries = () if self.live is None else self.live.sessions.values()
        return next((carry.ask for _, carry in carries if carry.ask is not None), None)

    @property
    def layers(self) -> Mapping[str, str]:
        """The digest of each existing layer."""
        layers = {"sandbox": self.image.digest}
        if self.state is not None:
            layers["environment"] = _digest(self.state)
        carried: list[Model] = [snapshot for _, (_, snapshot) in sorted(self.sessions.items())]
        if self.live is not None:
            carried += [carry for _, (_, carry) in sorted(self.live.sessions.items())]
        if carried:
            layers["session"] = _digest(*carried)
        return layers


def _digest(*models: Model) -> str:
    total = hashlib.sha256()
    for model in models:
        total.update(model.model_dump_json().encode())
    return f"sha256:{total.hexdigest()}"
