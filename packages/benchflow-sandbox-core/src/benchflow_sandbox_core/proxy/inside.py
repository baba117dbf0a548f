"""Where the inside of a box finds its proxy."""

from collections.abc import Mapping

from benchflow_contracts.sandbox import SandboxSpec

_PORTS = (8722, 8723)
_NOT_PROXIED = "localhost,127.0.0.1,::1"


def proxy_port(spec: SandboxSpec) -> int | None:
    """Return the port of the box's loopback that the proxy is at, when it ever has one."""
    if "allowlist" not in {spec.network, *spec.switches}:
        return None
    taken = None if spec.model is None else spec.model.port
    return next(port for port in _PORTS if port != taken)


def proxy_environment(spec: SandboxSpec) -> Mapping[str, str]:
    """Return the variables that lead programs to it. Libraries differ in which case they read."""
    if spec.network != "allowlist":
        return {}
    url = f"http://127.0.0.1:{proxy_port(spec)}"
    named = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": _NOT_PROXIED}
    return {**named, **{name.lower(): value for name, value in named.items()}}
