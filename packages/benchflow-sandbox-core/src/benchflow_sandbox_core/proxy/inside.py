"""Where the inside of a box finds its proxy."""

from collections.abc import Mapping

from benchflow_contracts.sandbox import SandboxSpec

_PORTS = (8722, 8723)
_NOT_PROXIED = "localhost,127.0.0.1,::1"


def proxy_port(spec: SandboxSpec) -> int | None:
    """Return the port of the box's loopback that the proxy is at, when it has one."""
    if spec.network != "allowlist":
        return None
    taken = None if spec.model is None else spec.model.port
    return next(port for port in _PORTS if port != taken)


def proxy_environment(spec: SandboxSpec) -> Mapping[str, str]:
    """Return the variables that lead programs to it. Libraries differ in which case they read."""
    port = proxy_port(spec)
    if port is None:
        return {}
    url = f"http://127.0.0.1:{port}"
    named = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": _NOT_PROXIED}
    return {**named, **{name.lower(): value for name, value in named.items()}}
