"""A ReplayLog: what it takes to come back to where a line is."""

from dataclasses import replace

from benchflow_contracts import Answer

from benchflow_kernel.branch import Checkpoint, CheckpointRefs, Exchange

from .branch_start import Position


class ReplayLog:
    """The last checkpoint of a line, with all that was asked, answered and called since."""

    def __init__(self, position: Position, refs: CheckpointRefs) -> None:
        self._refs = refs
        self._own: Checkpoint | None = None
        self._exchanges: list[Exchange] = []
        self.calls_before = 0
        """How many model calls the line had made at the floor."""
        self.base_checkpoint = position.checkpoint

    def append(self, exchange: Exchange) -> int:
        """Add a question, answered or open; return its place for `set_answer`."""
        self._exchanges.append(exchange)
        return len(self._exchanges) - 1

    def set_answer(self, place: int, answer: Answer) -> None:
        """Note what the question at `place` was answered with."""
        self._exchanges[place] = replace(self._exchanges[place], answer=answer)

    async def rebase(self, base: Checkpoint, calls: int) -> None:
        """Begin again at `base`, taken when the line had made so many `calls`."""
        old, self._own = self._own, base
        self.base_checkpoint = base
        self._refs.acquire(base)
        self._exchanges.clear()
        self.calls_before = calls
        await self._refs.release(old)

    @property
    def script(self) -> tuple[Exchange, ...]:
        """The exchanges since the floor."""
        return tuple(self._exchanges)

    async def aclose(self) -> None:
        """Let go of the line's own checkpoint. Idempotent."""
        own, self._own = self._own, None
        await self._refs.release(own)
