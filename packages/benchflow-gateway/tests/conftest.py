"""A gateway that records below `tmp_path`, and the scripted model server."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from benchflow_gateway import HttpGateway, PublicAddress, Publisher
from hypothesis import HealthCheck, settings
from scripted_llm import ScriptedLlm, WriteOneFile

sys.path.insert(0, str(Path(__file__).parent))

# A loaded machine is no reason to fail: no judgement of a strategy's speed.
settings.register_profile("gateway", max_examples=40, suppress_health_check=list(HealthCheck))
settings.load_profile("gateway")


@pytest.fixture
def llm() -> Any:
    with ScriptedLlm(WriteOneFile("hello.txt", "hi")) as server:
        yield server


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """Run `body(gateway)` with a gateway that records below `tmp_path`, maybe a public one."""

    def call(
        body: Callable[[HttpGateway], Awaitable[Any]],
        *,
        public: PublicAddress | None = None,
        **options: Any,
    ) -> Any:
        async def main() -> Any:
            async with HttpGateway(tmp_path / "record", **options) as gateway:
                gateway.publisher = None if public is None else Publisher(public)
                return await body(gateway)

        return asyncio.run(main())

    return call
