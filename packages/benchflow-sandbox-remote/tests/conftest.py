"""A cloud on this machine: local sandboxes, of which only files, commands and text are used."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from benchflow_contracts.base import BaseProvider
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxCapabilities, SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_remote import PROGRAM, LineTransport, ProcessTransport, RemoteSandbox


class LocalCloudSandbox:
    """One local sandbox as a cloud would offer it."""

    def __init__(self, box, lines=False):
        self.box = box
        self.id = f"cloud-{box.id}"
        self.lines = lines
        self.is_away = self.is_deleted = False
        self.refused = asyncio.Event()
        self.processes = []

    async def put(self, path, content, mode):
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            await self.box.upload(Path(file.name), path)
        await self.run(["chmod", f"{mode:o}", path])

    async def run(self, argv):
        result = await self.box.exec(argv, user="root", cwd="/", timeout=60)
        if not result.ok:
            raise SandboxError(f"{argv[0]} ended with {result.exit_code}: {result.stderr}")

    async def dial(self):
        if self.is_away:
            self.refused.set()
            raise SandboxError("the network to the cloud is cut")
        words = [PROGRAM, "dial", *(["lines"] if self.lines else [])]
        process = await self.box.spawn(words, user="root", cwd="/")
        self.processes.append(process)
        transport = ProcessTransport(process)
        return LineTransport(transport) if self.lines else transport

    async def cut(self):
        """End every connection, as a network that fails does."""
        processes, self.processes = self.processes, []
        for process in processes:
            await process.aclose()

    async def delete(self):
        await self.cut()
        await self.box.teardown()
        self.is_deleted = True


class LocalCloudProvider(BaseProvider):
    """Remote sandboxes on local ones."""

    name = "local-cloud"
    optional_fields = frozenset({"ports"})

    def __init__(self, lines=False, lost_after=30.0):
        super().__init__()
        self.local = LocalProvider()
        self.lines, self.lost_after = lines, lost_after
        self.clouds = []

    async def capabilities(self):
        return SandboxCapabilities(
            isolation="namespaces",
            network_modes=frozenset({"none", "model-only"}),
            users=True,
            freeze="guest",
            kill_all=True,
            doors="tunnel",
        )

    async def start(self, spec):
        plain = SandboxSpec(user="root", workdir="/", env=spec.env, limits=spec.limits)
        cloud = LocalCloudSandbox(await self.local.create(plain), self.lines)
        self.clouds.append(cloud)
        return await RemoteSandbox.start(cloud, spec, lost_after=self.lost_after)

    async def aclose(self):
        await super().aclose()
        await self.local.aclose()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.aclose()


@pytest.fixture
def with_provider():
    """Run an async test against a provider of its own."""

    def run(test, **options):
        async def main():
            async with LocalCloudProvider(**options) as provider:
                return await test(provider)

        return asyncio.run(main())

    return run


@pytest.fixture
def with_sandbox(with_provider):
    """Run an async test against one sandbox and its cloud."""

    def run(test, spec=SandboxSpec(), **options):  # noqa: B008
        async def main(provider):
            sandbox = await provider.create(spec)
            return await test(sandbox, provider.clouds[-1])

        return with_provider(main, **options)

    return run
