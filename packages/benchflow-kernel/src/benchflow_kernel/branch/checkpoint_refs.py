"""The checkpoints that a rollout holds."""

from benchflow_contracts import BenchFlowError, SandboxProvider

from benchflow_kernel.faults import shielded, within

from .checkpoint import Checkpoint


class CheckpointRefs:
    """Keeps each checkpoint for as long as somebody may start from it, and counts bytes.

    What cannot be discarded goes to `leaks`; it never fails the rollout.
    """

    def __init__(
        self, provider: SandboxProvider, seconds: float, leaks: list[BenchFlowError]
    ) -> None:
        self._provider = provider
        self._seconds = seconds
        self._leaks = leaks
        self._held: dict[str, tuple[Checkpoint, int]] = {}

    @property
    def disk_bytes(self) -> int:
        """What all of them take."""
        return sum(checkpoint.image.bytes for checkpoint, _ in self._held.values())

    def acquire(self, checkpoint: Checkpoint) -> None:
        """Keep it until one more `release`."""
        ref = checkpoint.image.ref
        _, holders = self._held.get(ref, (checkpoint, 0))
        self._held[ref] = (checkpoint, holders + 1)

    async def release(self, checkpoint: Checkpoint | None) -> None:
        """Let go of it; with its last holder it is discarded, cancelled or not."""
        if checkpoint is None:
            return
        ref = checkpoint.image.ref
        _, holders = self._held.get(ref, (checkpoint, 1))
        if holders > 1:
            self._held[ref] = (checkpoint, holders - 1)
            return
        self._held.pop(ref, None)
        await shielded(self._discard(checkpoint))

    async def aclose(self) -> None:
        """Discard what is still held: a rollout that was cut short let go of nothing."""
        held, self._held = self._held, {}
        for checkpoint, _ in held.values():
            await shielded(self._discard(checkpoint))

    async def _discard(self, checkpoint: Checkpoint) -> None:
        try:
            async with within(self._seconds, "sandbox", "discarding a checkpoint"):
                await self._provider.discard(checkpoint.image)
        except BenchFlowError as error:
            self._leaks.append(error)
