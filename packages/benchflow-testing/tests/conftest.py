import asyncio

import pytest
from benchflow_contracts import Endpoint
from benchflow_testing import GatewaySubject, check_sandbox
from benchflow_testing import sandbox_subject as subject_module
from benchflow_testing.fakes import FakeModelGateway, FakeSandboxProvider


@pytest.fixture
def gateway_subject():
    """Make a subject whose calls are method calls, and whose second model answers otherwise."""

    async def call(line, text: str) -> str | None:
        made = await line.call({"text": text})
        return None if made.response is None else str(made.response)

    def make(gateway_type: type[FakeModelGateway] = FakeModelGateway) -> GatewaySubject:
        other = Endpoint(url="http://127.0.0.1:1/other")
        return GatewaySubject(
            gateway_type({other.url: lambda request: {"other": request["text"]}}),
            upstream=Endpoint(url="http://127.0.0.1:1/one", headers={"x-key": "s3cret"}),
            other=other,
            call=call,
            slow=lambda line: line.slow_call({"text": "slow"}),
        )

    return make


@pytest.fixture
def impatient(monkeypatch):
    """Let the kit wait no longer than a fake takes."""
    monkeypatch.setattr(subject_module, "PATIENCE_SEC", 1.0)


@pytest.fixture
def status_of():
    """Return the status of one check against a provider."""

    async def main(provider: FakeSandboxProvider, name: str) -> str:
        try:
            (result,) = await check_sandbox(provider, only=[name])
        finally:
            for sandbox in provider.created:
                await sandbox.machine.halt()
        return result.status

    return lambda provider, name: asyncio.run(main(provider, name))
