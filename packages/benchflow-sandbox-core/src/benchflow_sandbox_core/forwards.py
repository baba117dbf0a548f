"""The ports of a sandbox that the host reaches."""

from collections.abc import Awaitable, Callable

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import Endpoint

from .forward import Connection, Forward


class Forwards:
    """One forward for each exposed port, with the same address for as long as this is open."""

    def __init__(self, dial: Callable[[int], Awaitable[Connection]]) -> None:
        self._dial = dial
        self._known: dict[int, tuple[Forward, Endpoint]] = {}

    async def expose(self, port: int) -> Endpoint:
        """Return where the host reaches a port inside. The same port twice is one.

        Raises:
            SandboxError: That is no port.
        """
        if not 0 < port < 65536:
            raise SandboxError(f"{port!r} is not a port")
        if port not in self._known:
            forward = Forward(port, self._dial)
            self._known[port] = (forward, await forward.start())
        return self._known[port][1]

    async def hang_up(self) -> None:
        """End every connection; the addresses stay."""
        for forward, _ in self._known.values():
            await forward.hang_up()

    async def aclose(self) -> None:
        """Stop listening and end every connection. Idempotent."""
        known, self._known = self._known, {}
        for forward, _ in known.values():
            await forward.aclose()
