"""A checkpoint: one world at one instant, in three layers; and its references."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchflow_contracts import (
    Ask,
    BenchFlowError,
    EnvState,
    Model,
    OutsideState,
    SandboxImage,
    SandboxProvider,
)

from benchflow_kernel.faults import run_shielded, within
from benchflow_kernel.world import CarriedSessions, LiveWorld


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The start of a child: environment, files, and sessions or processes."""

    turn: int
    """The next turn at that instant, or the running turn with `ask` or `at_call`."""
    image: SandboxImage
    state: EnvState | None
    """The environment's state at that instant."""
    sessions: CarriedSessions
    """Idle sessions in files. New agent processes resume them."""
    outside: OutsideState | None = None
    """The state of a world outside the sandbox."""
    live: LiveWorld | None = None
    """Services and sessions that continue in the image; `None` at level `filesystem`."""
    took_sec: Mapping[str, float] = field(default_factory=dict[str, float])
    """As `Checkpointed.took_sec`."""
    from_disk: bool = False
    """Whether another rollout took it. Agents there may have had other prompts or tools."""

    @property
    def ask(self) -> Ask | None:
        """The open question, if the checkpoint was taken during a turn."""
        live = () if self.live is None else self.live.sessions.values()
        sessions = [session for _, session in (*live, *self.sessions.values())]
        return next((session.ask for session in sessions if session.ask is not None), None)

    @property
    def at_call(self) -> bool:
        """Whether the checkpoint was taken while the agent waited for its model."""
        states = () if self.live is None else self.live.sessions.values()
        return any(carry.at_call for _, carry in states)

    @property
    def layers(self) -> Mapping[str, str]:
        """The digest of each existing layer."""
        layers = {"sandbox": self.image.digest}
        if self.state is not None:
            layers["environment"] = _digest(self.state)
        if self.outside is not None:
            layers["outside"] = self.outside.digest
        models: list[Model] = [snapshot for _, (_, snapshot) in sorted(self.sessions.items())]
        if self.live is not None:
            models += [carry for _, (_, carry) in sorted(self.live.sessions.items())]
        if models:
            layers["session"] = _digest(*models)
        return layers


def _digest(*models: Model) -> str:
    total = hashlib.sha256()
    for model in models:
        total.update(model.model_dump_json().encode())
    return f"sha256:{total.hexdigest()}"


class CheckpointRefs:
    """Keeps each checkpoint while a branch may start from it, and counts its bytes.

    A checkpoint that cannot be discarded goes to `leaks`. It never fails the rollout.
    """

    def __init__(
        self, provider: SandboxProvider, seconds: float, leaks: list[BenchFlowError]
    ) -> None:
        self._provider = provider
        self._seconds = seconds
        self._leaks = leaks
        self._by_ref: dict[str, tuple[Checkpoint, int]] = {}

    @property
    def disk_bytes(self) -> int:
        """The bytes of all checkpoints."""
        return sum(checkpoint.image.bytes for checkpoint, _ in self._by_ref.values())

    def acquire(self, checkpoint: Checkpoint) -> None:
        """Add one reference to the checkpoint."""
        ref = checkpoint.image.ref
        _, count = self._by_ref.get(ref, (checkpoint, 0))
        self._by_ref[ref] = (checkpoint, count + 1)

    async def release(self, checkpoint: Checkpoint | None) -> None:
        """Drop one reference. The last release discards the checkpoint, also on cancellation."""
        if checkpoint is None:
            return
        ref = checkpoint.image.ref
        _, count = self._by_ref.get(ref, (checkpoint, 1))
        if count > 1:
            self._by_ref[ref] = (checkpoint, count - 1)
            return
        self._by_ref.pop(ref, None)
        await run_shielded(self._discard(checkpoint))

    async def aclose(self) -> None:
        """Discard all remaining checkpoints, such as those of a cancelled rollout."""
        by_ref, self._by_ref = self._by_ref, {}
        for checkpoint, _ in by_ref.values():
            await run_shielded(self._discard(checkpoint))

    async def _discard(self, checkpoint: Checkpoint) -> None:
        try:
            async with within(self._seconds, "sandbox", "discarding a checkpoint"):
                await self._provider.discard(checkpoint.image)
        except BenchFlowError as error:
            self._leaks.append(error)
