"""A Trail: what it takes to come back to where a line is."""

from dataclasses import replace

from benchflow_contracts import Answer

from benchflow_kernel.branch import Checkpoint, Exchange, Shelf

from .start import Position


class Trail:
    """The last checkpoint of a line, with all that was asked, answered and called since."""

    def __init__(self, position: Position, shelf: Shelf) -> None:
        self._shelf = shelf
        self._own: Checkpoint | None = None
        self._exchanges: list[Exchange] = []
        self.calls_before = 0
        """How many model calls the line had made at the floor."""
        self.floor = position.checkpoint

    def note(self, exchange: Exchange) -> int:
        """Add a question, answered or open; return its place for `settle`."""
        self._exchanges.append(exchange)
        return len(self._exchanges) - 1

    def settle(self, place: int, answer: Answer) -> None:
        """Note what the question at `place` was answered with."""
        self._exchanges[place] = replace(self._exchanges[place], answer=answer)

    async def advance(self, floor: Checkpoint, calls: int) -> None:
        """Begin again at `floor`, taken when the line had made so many `calls`."""
        old, self._own = self._own, floor
        self.floor = floor
        self._shelf.hold(floor)
        self._exchanges.clear()
        self.calls_before = calls
        await self._shelf.release(old)

    @property
    def script(self) -> tuple[Exchange, ...]:
        """The exchanges since the floor."""
        return tuple(self._exchanges)

    async def aclose(self) -> None:
        """Let go of the line's own checkpoint. Idempotent."""
        own, self._own = self._own, None
        await self._shelf.release(own)
