"""The sandbox of a plan, compared with what its provider can do."""

from benchflow_contracts import SandboxCapabilities, SandboxSpec, SandboxUnsupportedError


def check_sandbox(spec: SandboxSpec, provider: str, capabilities: SandboxCapabilities) -> None:
    """Refuse a spec that the provider cannot create.

    Raises:
        SandboxUnsupportedError: The provider lacks a network mode, images from recipes, or
            services.
    """
    for mode in dict.fromkeys((spec.network, *spec.switches)):
        if mode not in capabilities.network_modes:
            raise _unsupported(provider, f"network mode {mode!r}", mode, capabilities)
    if spec.recipe is not None and not capabilities.builds:
        raise _unsupported(provider, "images from a Dockerfile", "builds", capabilities)
    if spec.services and not capabilities.services:
        raise _unsupported(provider, "services beside a sandbox", "services", capabilities)


def _unsupported(
    provider: str, what: str, capability: str, capabilities: SandboxCapabilities
) -> SandboxUnsupportedError:
    reason = capabilities.notes.get(capability)
    return SandboxUnsupportedError(
        f"sandbox {provider!r} does not support {what}" + (f": {reason}" if reason else ""),
        hint="use another sandbox, such as --sandbox docker",
    )
