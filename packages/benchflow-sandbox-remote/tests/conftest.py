"""A cloud on this machine: local sandboxes, of which only files, commands and text are used."""

import asyncio
import tempfile
import time
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError, SandboxLostError
from benchflow_contracts.sandbox import SandboxCapabilities, SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_remote import (
    PROGRAM,
    CloudRecord,
    LineTransport,
    ProcessTransport,
    RemoteProvider,
)


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
        if self.is_deleted:
            raise SandboxLostError("the cloud has deleted the sandbox")
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


class LocalCloud:
    """An account of it. It notes each extension of a lifetime."""

    def __init__(self, lines=False):
        self.local = LocalProvider()
        self.lines = lines
        self.made = {}
        self.records = {}
        self.failures = []
        """Errors of the next calls of `create`, each before or after its work."""
        self.extensions = asyncio.Queue()

    async def create(self, spec, *, key, labels, lifetime):
        before, after = self.failures.pop(0) if self.failures else (None, None)
        if before:
            raise before
        if key not in self.made:
            plain = SandboxSpec(user="root", workdir="/", env=spec.env, limits=spec.limits)
            made = LocalCloudSandbox(await self.local.create(plain), self.lines)
            self.made[key] = made
            self.records[made.id] = CloudRecord(made.id, labels, time.time())
        if after:
            raise after
        return self.made[key]

    async def list(self, label):
        for made in list(self.made.values()):
            if not made.is_deleted and label in self.records[made.id].labels:
                yield self.records[made.id]

    async def extend(self, sandbox, lifetime):
        await self.extensions.put((sandbox, lifetime))

    async def delete(self, sandbox):
        for made in self.made.values():
            if made.id == sandbox:
                await made.delete()

    async def aclose(self):
        await self.local.aclose()


CAN = SandboxCapabilities(
    isolation="namespaces",
    network_modes=frozenset({"none", "model-only"}),
    users=True,
    freeze="guest",
    kill_all=True,
    doors="tunnel",
)


@pytest.fixture
def with_provider():
    """Run an async test against a provider of its own."""

    def run(test, lines=False, **options):
        async def main():
            cloud = LocalCloud(lines)
            options.setdefault("lost_after", 30.0)
            async with RemoteProvider("local-cloud", cloud, CAN, **options) as provider:
                provider.cloud = cloud
                return await test(provider)

        return asyncio.run(main())

    return run


@pytest.fixture
def with_sandbox(with_provider):
    """Run an async test against one sandbox and its cloud."""

    def run(test, spec=SandboxSpec(), **options):  # noqa: B008
        async def main(provider):
            sandbox = await provider.create(spec)
            return await test(sandbox, list(provider.cloud.made.values())[-1])

        return with_provider(main, **options)

    return run
