"""The newest engine keeps the promises of the oldest, as it is from Docker 29 on."""

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest
from benchflow_contracts.testing import CheckResult, check_sandbox
from benchflow_sandbox_docker import DockerProvider
from own_engine import OwnEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SKIPPED = {
    "capabilities: no live snapshots",
    "capabilities: no disk limit",
    "capabilities: there are builds",
    "capabilities: there are services",
    "every network mode is supported",
}


def test_the_newest_engine_keeps_every_promise_of_the_contract(
    image: str, newer_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "daemon.json"
    config.write_text(json.dumps({"features": {"containerd-snapshotter": True}}))
    monkeypatch.setenv("DOCKER_MIN_API_VERSION", "1.44")
    with closing(OwnEngine([f"--config-file={config}"], Path(newer_engine))) as engine:
        engine.start()
        engine.take(image)
        before = engine.holds()
        monkeypatch.setenv("DOCKER_HOST", engine.host)

        async def main() -> list[CheckResult]:
            async with DockerProvider(image=image, store=tmp_path / "store") as provider:
                return await check_sandbox(provider, base=image)

        results = asyncio.run(main())
        assert {r.name: r.reason for r in results if r.status == "failed"} == {}
        assert {r.reason for r in results if r.status == "skipped"} <= SKIPPED
        assert engine.holds() == before
