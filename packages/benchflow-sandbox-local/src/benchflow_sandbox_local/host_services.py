"""The servers of the host inside a sandbox, and the ports of the sandbox exposed outside."""

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchflow_contracts.door import DoorPath, Endpoint
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.port_forward import Connection, PortForwards
from benchflow_sandbox_core.proxy.server import Proxy, proxy_port
from benchflow_sandbox_core.relay.request_server import RequestServer
from benchflow_sandbox_core.spec import allowlist_of

from .running_box import LocalRunningBox

if TYPE_CHECKING:
    from benchflow_sandbox_core.relay.server import Relay


class HostServices:
    """The relays of the doors, the proxy to allowed hosts, and the exposed ports."""

    def __init__(self, running: Callable[[], LocalRunningBox]) -> None:
        self._running = running
        self.forwards = PortForwards(self.connect)
        self.relays: Mapping[int, Relay] = {}
        """The relays of the doors, by their ports inside."""
        self.door_paths: Mapping[str, DoorPath] = {}
        """The path out of each door, by the door's name."""
        self._proxy: Proxy | None = None

    async def connect(self, port: int) -> Connection:
        """Connect a stream to a port inside; raise `OSError` when nothing listens there."""
        return await self._running().connect(port)

    async def expose(self, port: int) -> Endpoint:
        """Make a port inside reachable from the host's loopback. A port has one address."""
        return await self.forwards.expose(port)

    async def start(self, running: LocalRunningBox, spec: SandboxSpec) -> None:
        """Serve a started sandbox."""
        self.relays = await running.start_relays(spec.served_doors)
        path = running.door_path
        self.door_paths = {} if path is None else spec.door_paths(path)
        port = proxy_port(spec)
        if port is not None:
            listener = await running.socket_inside()
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
                listener.listen()
                self._proxy = await Proxy.start(listener, allowlist_of(spec))
            except BaseException:
                listener.close()
                raise

    async def switch(self, spec: SandboxSpec) -> None:
        """Let the proxy connect to the hosts that `spec` lists, and to no others."""
        if self._proxy is not None:
            await self._proxy.switch(allowlist_of(spec))

    @property
    def _all(self) -> list[RequestServer]:
        return [*self.relays.values(), *([] if self._proxy is None else [self._proxy])]

    @property
    def in_flight(self) -> bool:
        """Whether a request from inside waits for the end of its response."""
        return any(server.in_flight for server in self._all)

    async def drain(self) -> None:
        """Wait until each server in turn has no request in flight."""
        for server in self._all:
            await server.drain()

    async def stop(self, running: LocalRunningBox | None) -> None:
        """Stop serving `running`; `start` may serve another sandbox. Idempotent."""
        if running is not None:
            await running.disconnect()
        servers, self.relays, self._proxy = self._all, {}, None
        for server in servers:
            await server.aclose()

    async def hang_up(self, running: LocalRunningBox | None) -> None:
        """Stop serving, and end the connections to exposed ports; their addresses stay valid."""
        await self.forwards.hang_up()
        await self.stop(running)

    async def aclose(self, running: LocalRunningBox | None) -> None:
        """Stop serving and close the exposed ports. Idempotent."""
        await self.forwards.aclose()
        await self.stop(running)
