"""The networks that a box can have."""

from collections.abc import Set as AbstractSet

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.sandbox import NetworkMode, SandboxSpec

OWN: frozenset[NetworkMode] = frozenset({"none", "model-only", "allowlist"})
"""Of boxes on this kernel: a loopback, with what the host serves at it."""
GUEST: frozenset[NetworkMode] = frozenset({"none", "model-only"})
"""Of boxes whose loopback is another kernel's."""


def refuse_network(spec: SandboxSpec, known: AbstractSet[NetworkMode]) -> None:
    """Raise `SandboxUnsupportedError` for a network that this provider does not have."""
    for mode in (spec.network, *spec.switches):
        if mode not in known:
            raise SandboxUnsupportedError(
                f"the local provider has no network {mode!r}",
                hint="--sandbox docker has; --offline runs the task without",
            )
