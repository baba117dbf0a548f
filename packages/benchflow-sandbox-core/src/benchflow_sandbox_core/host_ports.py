"""The ports of one sandbox: ports that the host serves inside, and exposed ports."""

from collections.abc import Awaitable, Callable

from benchflow_contracts.door import Endpoint
from benchflow_contracts.sandbox import SandboxSpec

from .fifo.port_server import AcceptsConnections, PortListener, PortServer
from .port_forward import Connection, PortForwards
from .proxy.server import Proxy, proxy_port
from .relay.request_server import RequestServer
from .relay.server import Relay, RelayUpstream
from .spec import allowlist_of


def guest_ports(spec: SandboxSpec) -> list[int]:
    """Return the loopback ports inside that the host serves: of the doors and of the proxy."""
    proxy = proxy_port(spec)
    return [*(door.port for door in spec.served_doors), *([] if proxy is None else [proxy])]


class HostPorts:
    """Serves the doors and the proxy inside, and forwards loopback ports of the host."""

    def __init__(self, connect: Callable[[int], Awaitable[Connection]]) -> None:
        self._forwards = PortForwards(connect)
        self._server: PortServer | None = None
        self._request_servers = list[RequestServer]()
        self._proxy: Proxy | None = None

    def serve(self, listener: PortListener | AcceptsConnections, spec: SandboxSpec) -> None:
        """Serve the host's ports inside, in the order of `guest_ports`."""
        self._request_servers += [Relay(RelayUpstream.of(door)) for door in spec.served_doors]
        self._proxy = None
        if proxy_port(spec) is not None:
            self._proxy = Proxy(allowlist_of(spec))
            self._request_servers.append(self._proxy)
        self._server = PortServer(listener, *self._request_servers)

    async def switch(self, spec: SandboxSpec) -> None:
        """Set the allowed hosts of the proxy from `spec`, and close its open connections."""
        if self._proxy is not None:
            await self._proxy.switch(allowlist_of(spec))

    async def drain(self) -> None:
        """Wait until no request from inside is in flight."""
        for each in self._request_servers:
            await each.drain()

    async def expose(self, port: int) -> Endpoint:
        """Return the host's address of a port inside. A port always has the same address."""
        return await self._forwards.expose(port)

    async def reset(self) -> None:
        """Close every connection and stop serving. Exposed addresses stay valid."""
        await self._forwards.hang_up()
        await self._stop_serving()

    async def aclose(self) -> None:
        """Close everything. Idempotent."""
        await self._forwards.aclose()
        await self._stop_serving()

    async def _stop_serving(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.aclose()
        request_servers, self._request_servers = self._request_servers, []
        for each in request_servers:
            await each.aclose()
