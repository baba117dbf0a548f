from contextlib import asynccontextmanager

import pytest
from benchflow_contracts import ModelEndpoint
from benchflow_contracts.testing import GatewaySubject
from benchflow_contracts.testing.fakes import FakeModelGateway


@pytest.fixture
def gateway_subject():
    """Make a subject whose calls are method calls, and whose second model answers otherwise."""

    async def call(line, text: str) -> str | None:
        made = await line.call({"text": text})
        return None if made.response is None else str(made.response)

    @asynccontextmanager
    async def slow(line):
        line.begin()
        yield
        line.end()

    def make(gateway_type: type[FakeModelGateway] = FakeModelGateway) -> GatewaySubject:
        other = ModelEndpoint(upstream="http://127.0.0.1:1/other")
        return GatewaySubject(
            gateway_type({other.upstream: lambda request: {"other": request["text"]}}),
            upstream=ModelEndpoint(upstream="http://127.0.0.1:1/one", headers={"x-key": "s3cret"}),
            other=other,
            call=call,
            slow=slow,
        )

    return make
