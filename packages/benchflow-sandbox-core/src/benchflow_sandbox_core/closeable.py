"""Objects that are closed completely at the end of a block."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from .shield import finish


class AsyncCloseable(ABC):
    """An async context manager whose cleanup a cancellation does not interrupt."""

    _closed = False

    async def aclose(self) -> None:
        """Tear down everything that this instance created. Idempotent."""
        self._closed = True
        await finish(self._aclose())

    @abstractmethod
    async def _aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
