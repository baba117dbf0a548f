"""What the host serves inside of one life of a box."""

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.proxy.server import Proxy, proxy_port
from benchflow_sandbox_core.relay.request_server import RequestServer
from benchflow_sandbox_core.relay.server import Relay
from benchflow_sandbox_core.relay.upstream import RelayUpstream
from benchflow_sandbox_core.spec import allowlist_of

from .running_box import LocalRunningBox


@dataclass(slots=True)
class HostServices:
    """The relay to the model and the proxy to allowed hosts, each where the spec has it."""

    relay: Relay | None = None
    proxy: Proxy | None = None

    async def start(
        self,
        machine: LocalRunningBox,
        spec: SandboxSpec,
        inside: Callable[[], Awaitable[socket.socket]],
    ) -> None:
        """Serve a started box, in which `inside` makes sockets."""
        if machine.listener is not None and spec.model is not None:
            upstream = RelayUpstream.of(spec.model)
            listener, machine.listener = machine.listener, None
            self.relay = await Relay.start(listener, upstream)
        port = proxy_port(spec)
        if port is not None:
            listener = await inside()
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
                listener.listen()
                self.proxy = await Proxy.start(listener, allowlist_of(spec))
            except BaseException:
                listener.close()
                raise

    async def switch(self, spec: SandboxSpec) -> None:
        """Let the proxy through to whom the spec lists now."""
        if self.proxy is not None:
            await self.proxy.switch(allowlist_of(spec))

    @property
    def _all(self) -> list[RequestServer]:
        return [each for each in (self.relay, self.proxy) if each is not None]

    @property
    def in_flight(self) -> bool:
        """Whether a call of the inside has begun and not ended."""
        return any(each.in_flight for each in self._all)

    async def drain(self) -> None:
        """Return when each has had a moment without a call in flight."""
        for each in self._all:
            await each.drain()

    async def aclose(self) -> None:
        """End what is served; `start` may serve another life. Idempotent."""
        served, self.relay, self.proxy = self._all, None, None
        for each in served:
            await each.aclose()
