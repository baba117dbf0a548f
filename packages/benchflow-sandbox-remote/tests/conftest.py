"""A cloud on this machine: local sandboxes, of which only files, commands and text are used."""

import asyncio
import sys
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
    WebSocketListener,
)

sys.path.insert(0, str(Path(__file__).parent))
from cutting_proxy import CuttingProxy


class LocalCloudSandbox:
    """One local sandbox as a cloud would offer it."""

    def __init__(self, box, way="bytes"):
        self.box = box
        self.id = f"cloud-{box.id}"
        self.way = way
        self.listener = self.proxy = None
        self.is_away = self.is_deleted = False
        self.refused = asyncio.Event()
        self.processes = []
        self.wrap = lambda transport: transport
        """Changes each connection."""

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
        if self.way == "websocket":
            return self.wrap(await self.dial_port())
        words = [PROGRAM, "dial", *(["lines"] if self.way == "lines" else [])]
        process = await self.box.spawn(words, user="root", cwd="/")
        self.processes.append(process)
        transport = ProcessTransport(process)
        return self.wrap(LineTransport(transport) if self.way == "lines" else transport)

    async def dial_port(self):
        if self.listener is None:
            self.listener = await WebSocketListener.start(self)
            url = (await self.box.expose_port(self.listener.port)).url
            self.proxy = CuttingProxy("127.0.0.1", int(url.rpartition(":")[2]))
            await self.proxy.start()
        return await self.listener.connect(self.proxy.url)

    async def cut(self):
        """End every connection, as a network that fails does."""
        if self.proxy is not None:
            self.proxy.cut()
        processes, self.processes = self.processes, []
        for process in processes:
            await process.aclose()

    async def delete(self):
        await self.cut()
        if self.proxy is not None:
            await self.proxy.aclose()
        await self.box.teardown()
        self.is_deleted = True


class LocalCloud:
    """An account of it. It notes each extension of a lifetime."""

    def __init__(self, way="bytes"):
        self.local = LocalProvider()
        self.way = way
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
            made = LocalCloudSandbox(await self.local.create(plain), self.way)
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

    def run(test, way="bytes", **options):
        async def main():
            cloud = LocalCloud(way)
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
