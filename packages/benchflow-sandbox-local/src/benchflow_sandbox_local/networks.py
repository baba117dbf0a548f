"""The networks that a box can have."""

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec


def refuse_network(spec: SandboxSpec) -> None:
    """Raise `SandboxUnsupportedError` for a network that this provider does not have."""
    if spec.network not in {"none", "model-only"}:
        raise SandboxUnsupportedError(
            f"the local provider has no network {spec.network!r}",
            hint="--sandbox docker has; --offline runs the task without",
        )
