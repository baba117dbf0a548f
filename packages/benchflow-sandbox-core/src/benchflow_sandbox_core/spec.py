"""What no sandbox of this host can be, whatever keeps it apart."""

from benchflow_contracts.errors import SandboxUnsupportedError, UsageError
from benchflow_contracts.sandbox import SandboxSpec

from .relay.upstream import Upstream


def check_spec(spec: SandboxSpec) -> None:
    """Refuse a spec that means nothing.

    Raises:
        UsageError: A path is not one inside, or the model's URL is none.
        SandboxUnsupportedError: A model endpoint is asked for in a network without one.
    """
    for path in (spec.workdir, *(mount.target for mount in spec.mounts)):
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise UsageError(
                f"{path!r} is not a path inside a sandbox",
                hint="name an absolute path without '..'",
            )
    if spec.model is not None and spec.network != "model-only":
        raise SandboxUnsupportedError(
            f"a model endpoint needs network 'model-only', not {spec.network!r}"
        )
    if spec.model is not None:
        Upstream.of(spec.model)
