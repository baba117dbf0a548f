"""Other engines keep the promises of the one that all tests use: the oldest, and one like 29."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from benchflow_contracts import (
    ContainerOptions,
    ReapPolicy,
    ResourceLimits,
    SandboxLimitError,
    SandboxSpec,
    SandboxTimeoutError,
    ServiceHealth,
    ServiceSpec,
)
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_docker.commit_limiter import CommitLimiter
from benchflow_sandbox_docker.engine import DockerEngine
from benchflow_testing import SandboxReport, check_sandbox, sandbox_checks
from benchflow_testing.checks.exec_checks import EXEC_CHECKS
from benchflow_testing.checks.freeze_checks import FREEZE_CHECKS
from benchflow_testing.checks.network_checks import NETWORK_CHECKS
from benchflow_testing.checks.observed_checks import OBSERVED_CHECKS
from benchflow_testing.checks.spawn_checks import SPAWN_CHECKS
from benchflow_testing.checks.switched_checks import SWITCHED_CHECKS
from own_engine import OwnEngine
from watching import until

pytestmark = pytest.mark.timeout(600)
SKIPPED = {
    "capabilities: no kill_all",
    "capabilities: no live snapshots",
    "capabilities: no disk limit",
    "capabilities: there are builds",
    "capabilities: there are services",
    "every network mode is supported",
}


BOTH = pytest.mark.parametrize("engine", ["older", "like_29"], indirect=True)
LIKE_29 = pytest.mark.parametrize("engine", ["like_29"], indirect=True)


@pytest.fixture(scope="module")
def like_29(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEngine]:
    """Start an engine that is configured as Docker 29 is."""
    config = tmp_path_factory.mktemp("engine") / "daemon.json"
    config.write_text(json.dumps({"features": {"containerd-snapshotter": True}}))
    with closing(OwnEngine([f"--config-file={config}"], lowest_api="1.44")) as engine:
        engine.start()
        engine.take(image)
        yield engine


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> OwnEngine:
    engine: OwnEngine = request.getfixturevalue(request.param)
    return engine


@pytest.fixture
def provider(
    image: str, engine: OwnEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DockerProvider]:
    """Make one for a block of a test; nothing of it is left after."""
    before = engine.holds()
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    yield DockerProvider(image=image, store=tmp_path / "store")
    assert engine.holds() == before


@pytest.mark.nightly
@BOTH
def test_it_keeps_every_promise_that_depends_on_the_engine(
    image: str, provider: DockerProvider, request: pytest.FixtureRequest
) -> None:
    # Commands, processes and uploads use pipes, and not the engine. The one like 29 has another
    # store of images, and the networks and cgroups of the engine that all tests use.
    like_29 = (*NETWORK_CHECKS, *SWITCHED_CHECKS, *FREEZE_CHECKS, *OBSERVED_CHECKS)
    same = like_29 if "like_29" in request.node.name else ()
    apart = {str(check) for check in (*EXEC_CHECKS, *SPAWN_CHECKS, *same)}
    names = map(str, sandbox_checks())
    wanted = [name for name in names if name not in apart and not name.startswith("upload_")]

    async def main() -> SandboxReport:
        async with provider:
            return await check_sandbox(provider, base=image, only=wanted, at_once=6)

    results = asyncio.run(main())
    assert {r.name: r.reason for r in results if r.status == "failed"} == {}
    assert {r.reason for r in results if r.status == "skipped"} <= SKIPPED


@pytest.mark.slow
@LIKE_29
def test_a_service_that_starts_is_looked_at_as_often_as_its_start_interval_says(
    image: str, provider: DockerProvider
) -> None:
    # By the engine's own 5 s it would take beyond two minutes, and by `interval` for ever.
    health = ServiceHealth(
        test=("CMD-SHELL", "echo >> /looks; test $(wc -l < /looks) -gt 25"),
        interval_sec=1000,
        start_period_sec=1000,
        start_interval_sec=0.01,
    )
    idle = ("sleep", "1000")
    service = ServiceSpec(name="slow", image=image, command=idle, user="root", health=health)
    spec = SandboxSpec(services=(service,), container=ContainerOptions(needs={"slow": "healthy"}))

    async def main() -> None:
        async with provider, asyncio.timeout(100):
            await provider.create(spec)

    asyncio.run(main())


@pytest.mark.slow
@BOTH
def test_what_an_image_calls_a_volume_is_in_forks_that_outlive_the_image(
    image: str, engine: OwnEngine, provider: DockerProvider, tmp_path: Path
) -> None:
    base = engine.api.create_container(image, ["true"])["Id"]
    declared = engine.api.commit(base, "declared", changes='VOLUME ["/data"]')["Id"]
    engine.api.remove_container(base)
    spec = SandboxSpec(image="declared", user="root")

    async def main() -> None:
        async with provider:
            box = await provider.create(spec)
            engine.api.remove_image("declared")
            await box.set_baseline()
            assert (await box.exec("echo first > /data/file")).ok
            assert (await box.changed_files()).added == ("/data/file",)
            await provider.save(await box.snapshot(), tmp_path / "kept")
            await box.teardown()
            fork = await provider.create(spec, image=await provider.load(tmp_path / "kept"))
            assert (await fork.exec("cat /data/file")).stdout == "first\n"
            await fork.teardown()
            await provider.reap(ReapPolicy(scope="none", built_images=True))

    asyncio.run(main())
    assert declared not in {each["Id"] for each in engine.api.images(all=True)}


@pytest.mark.slow
@LIKE_29
def test_holes_count_here_too_and_a_late_commit_ends_with_its_files(
    engine: OwnEngine, provider: DockerProvider
) -> None:
    async def main() -> None:
        async with provider:
            box = await provider.create(SandboxSpec(limits=ResourceLimits(disk_mb=100)))
            await provider.discard(await box.snapshot())
            assert (await box.exec("truncate -s 8G /home/big", user="root")).ok
            with pytest.raises(SandboxLimitError, match="/home/big"):
                await box.snapshot()
            own = await DockerEngine.connect(f"{engine.home}/sock", 60)
            async with CommitLimiter(own).admit(f"benchflow-{box.id}", 1 << 20) as admit:
                with pytest.raises(SandboxTimeoutError):
                    await own.do_long("commit", 1, admit.container)
                assert any("tmpmounts" in place for place in engine.mounts)
                await admit.end()
            own.close()
        until("the end", lambda: not any("tmpmounts" in place for place in engine.mounts))

    asyncio.run(main())
