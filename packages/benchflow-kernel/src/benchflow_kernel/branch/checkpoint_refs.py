"""References to the checkpoints of a rollout."""

from benchflow_contracts import BenchFlowError, SandboxProvider

from benchflow_kernel.faults import shielded, within

from .checkpoint import Checkpoint


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
        self._held: dict[str, tuple[Checkpoint, int]] = {}

    @property
    def disk_bytes(self) -> int:
        """The bytes of all checkpoints."""
        return sum(checkpoint.image.bytes for checkpoint, _ in self._held.values())

    def acquire(self, checkpoint: Checkpoint) -> None:
        """Keep the checkpoint until one more `release`."""
        ref = checkpoint.image.ref
        _, holders = self._held.get(ref, (checkpoint, 0))
        self._held[ref] = (checkpoint, holders + 1)

    async def release(self, checkpoint: Checkpoint | None) -> None:
        """Drop one reference. The last one discards the checkpoint, also on cancellation."""
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
        """Discard all checkpoints that are left, such as those of a cancelled rollout."""
        held, self._held = self._held, {}
        for checkpoint, _ in held.values():
            await shielded(self._discard(checkpoint))

    async def _discard(self, checkpoint: Checkpoint) -> None:
        try:
            async with within(self._seconds, "sandbox", "discarding a checkpoint"):
                await self._provider.discard(checkpoint.image)
        except BenchFlowError as error:
            self._leaks.append(error)
