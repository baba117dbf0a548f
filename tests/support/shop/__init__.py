"""A world of some kind of state, in a real box, and its forks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import (
    EnvState,
    ProvisionContext,
    Sandbox,
    SandboxSpec,
)
from benchflow_env_manifest import ManifestEnvironment, manifest_environment
from benchflow_kernel import diff_states
from benchflow_sandbox_local import LocalProvider

HEAD = """
[environment]
name = "shop"
base_image = "host"
owns_lifecycle = false
"""


@dataclass
class Shop:
    """A provisioned world in a box, and what is needed to fork it."""

    provider: LocalProvider
    box: Sandbox
    environment: ManifestEnvironment
    manifest: Path

    async def root(self, script: str) -> str:
        result = await self.box.exec(["bash", "-c", script], user="root", cwd="/", timeout=120)
        assert result.ok, result
        return result.stdout.strip()

    @asynccontextmanager
    async def fork(self) -> AsyncIterator["Shop"]:
        """A child from a checkpoint as the kernel takes it; its state is the checkpoint's."""
        async with self.environment.quiesce(), self.box.freeze():
            state = await self.environment.query()
            image = await self.box.snapshot()
        box = await self.provider.create(self.box.spec, image=image)
        environment = manifest_environment(self.manifest)()
        assert isinstance(environment, ManifestEnvironment)
        try:
            await environment.provision(ProvisionContext(box, "t", resumed=True))
            probe = await environment.readiness()
            assert probe.ready, probe
            await environment.check()
            child = Shop(self.provider, box, environment, self.manifest)
            assert diff_states(state, await environment.query()).empty
            yield child
        finally:
            await environment.teardown()
            await box.teardown()
            await self.provider.discard(image)


@asynccontextmanager
async def shop(folder: Path, text: str, files: dict[str, str]) -> AsyncIterator[Shop]:
    manifest = folder / "environment.toml"
    manifest.write_text(text)
    environment = manifest_environment(manifest)()
    assert isinstance(environment, ManifestEnvironment)
    async with LocalProvider(store=folder / "store") as provider:
        box = await provider.create(environment.prepare(SandboxSpec(), task_id="t"))
        made = Shop(provider, box, environment, manifest)
        try:
            for index, (path, content) in enumerate(files.items()):
                local = folder / f"upload-{index}"
                local.write_text(content)
                await box.upload(local, path)
            await environment.provision(ProvisionContext(box, "t"))
            probe = await environment.readiness()
            assert probe.ready, probe
            yield made
        finally:
            await environment.teardown()
            await box.teardown()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(240):
            await test()

    asyncio.run(main())


def rows(state: EnvState, database: str, table: str) -> list[tuple]:
    found = state.databases[database][table].rows
    assert found is not None
    return list(found)
