"""What no sandbox of this host can be, whatever keeps it apart."""

from benchflow_contracts.errors import SandboxUnsupportedError, UsageError
from benchflow_contracts.sandbox import SandboxSpec

from .proxy.allowlist import Allowlist
from .relay.upstream import Upstream


def check_spec(spec: SandboxSpec, *, services: bool = False) -> None:
    """Refuse a spec that means nothing.

    Raises:
        UsageError: A path is not one inside, the model's URL is none, there are two images,
            or an allowed host is none.
        SandboxUnsupportedError: A model endpoint is asked for in a network without one, or
            services where there can be none.
    """
    if (spec.services or spec.volumes) and not services:
        names = ", ".join(service.name for service in spec.services)
        raise SandboxUnsupportedError(
            f"no services can be beside this sandbox: {names}", hint="use the docker sandbox"
        )
    if spec.recipe is not None and spec.image is not None:
        raise UsageError(f"an image {spec.image!r} and a recipe of another", hint="give one")
    workdirs = [spec.workdir] if spec.workdir else []
    for path in (*workdirs, *(mount.target for mount in spec.mounts)):
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise UsageError(
                f"{path!r} is not a path inside a sandbox",
                hint="name an absolute path without '..'",
            )
    if spec.model is not None and spec.network == "none":
        raise SandboxUnsupportedError(
            "a model endpoint needs another network than 'none'", hint="use 'model-only'"
        )
    if spec.model is not None:
        Upstream.of(spec.model)
    if spec.allowed_hosts and spec.network != "allowlist":
        raise UsageError(
            f"allowed hosts mean nothing in network {spec.network!r}", hint="use 'allowlist'"
        )
    Allowlist.parse(spec.allowed_hosts)
