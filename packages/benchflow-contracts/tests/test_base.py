import asyncio

import pytest

from benchflow_contracts import (
    BaseProvider,
    ContainerOptions,
    SandboxCapabilities,
    SandboxSpec,
    SandboxUnsupportedError,
)


class StartedError(Exception):
    """The provider did not refuse the spec."""


class Provider(BaseProvider):
    name = "small"
    static_capabilities = SandboxCapabilities(
        isolation="vm", network_modes=frozenset({"none"}), notes={"services": "there is one VM"}
    )

    async def start(self, spec):
        raise StartedError


class PortProvider(Provider):
    optional_fields = frozenset({"ports"})


def create(provider, **spec):
    asyncio.run(provider.create(SandboxSpec(**spec)))


def test_a_provider_refuses_ports_unless_it_supports_them():
    with pytest.raises(SandboxUnsupportedError, match="'small' does not support 'ports'") as caught:
        create(Provider(), ports=(80,))
    assert "another sandbox" in caught.value.hint
    with pytest.raises(StartedError):
        create(PortProvider(), ports=(80,))


def test_a_provider_without_services_refuses_options_of_the_container():
    with pytest.raises(SandboxUnsupportedError, match="options of its container") as caught:
        create(Provider(), container=ContainerOptions(shm_mb=64))
    assert caught.value.hint == "there is one VM"


def test_a_plain_spec_is_started():
    with pytest.raises(StartedError):
        create(Provider())
