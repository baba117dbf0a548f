"""E2B's SDK against our server over local sandboxes: commands, live forks, and a baked agent.

Nothing runs on E2B.

The server and the client are one process on this machine, so the figures have no network. The
peers are the same work by the local provider itself, in the same run.
"""

import asyncio
import datetime as dt
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchflow_contracts.bundle import Bundle
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_e2b import E2bProvider
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_remote import CloudTerms
from benchflow_testing_clouds.e2b import e2b_server
from e2b import AsyncSandbox
from report import emit

COMMANDS, FORKS, CHILDREN = 60, 5, 10
RUN_LIMIT, FORK_LIMIT = 10.0, 300.0
AGENT = "import time\nwhile True: time.sleep(1)"
"""A Python of about 5 MB."""
SPEC = SandboxSpec(user="root", workdir="/")
AGENT_MB, FILES, STARTS = 400, 40, 5
TERMS = CloudTerms(date=dt.date(2026, 11, 29), source="a benchmark")
FREE_MB = 8 * AGENT_MB
"""The agent, its archives, the upload, and its copies in the sandboxes of the build."""


async def local_runs(provider: LocalProvider) -> list[float]:
    """Return the milliseconds of each `true` by the local provider."""
    sandbox = await provider.create(SPEC)
    times = list[float]()
    for _ in range(COMMANDS):
        began = time.perf_counter()
        await sandbox.exec(["true"])
        times.append((time.perf_counter() - began) * 1000)
    await sandbox.teardown()
    return times


async def local_forks(provider: LocalProvider) -> list[float]:
    """Return the milliseconds of each snapshot and its children by the local provider."""
    sandbox = await provider.create(SPEC)
    await sandbox.spawn(["python3", "-c", AGENT])
    await asyncio.sleep(1)  # it starts
    times = list[float]()
    for _ in range(FORKS):
        began = time.perf_counter()
        image = await sandbox.snapshot("live")
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(provider.create(SPEC, image=image)) for _ in range(CHILDREN)]
        times.append((time.perf_counter() - began) * 1000)
        for child in made:
            await child.result().teardown()
        await provider.discard(image)
    await sandbox.teardown()
    return times


async def sdk_runs(sandbox: AsyncSandbox) -> list[float]:
    """Return the milliseconds of each `true` by the SDK."""
    times = list[float]()
    for _ in range(COMMANDS):
        began = time.perf_counter()
        await sandbox.commands.run("true")
        times.append((time.perf_counter() - began) * 1000)
    return times


async def sdk_forks(sandbox: AsyncSandbox) -> list[float]:
    """Return the milliseconds of each `fork` by the SDK."""
    await sandbox.commands.run(f"exec python3 -c '{AGENT}'", background=True)
    await asyncio.sleep(1)  # it starts
    times = list[float]()
    for _ in range(FORKS):
        began = time.perf_counter()
        children = await sandbox.fork(count=CHILDREN)
        times.append((time.perf_counter() - began) * 1000)
        for child in children:
            assert isinstance(child, AsyncSandbox), child
            await child.kill()
    return times


async def provider_forks(url: str) -> list[float]:
    """Return the milliseconds of each fork by our provider, with a link to each child."""
    times = list[float]()
    async with E2bProvider(
        api_key="e2b_test", api_url=url, sandbox_url=url, terms=TERMS
    ) as provider:
        sandbox = await provider.create(SPEC)
        await sandbox.spawn(["python3", "-c", AGENT])
        await asyncio.sleep(1)  # it starts
        for _ in range(FORKS):
            began = time.perf_counter()
            image = await sandbox.snapshot("live")
            async with asyncio.TaskGroup() as group:
                made = [
                    group.create_task(provider.create(SPEC, image=image)) for _ in range(CHILDREN)
                ]
            times.append((time.perf_counter() - began) * 1000)
            for child in made:
                await child.result().teardown()
            await provider.discard(image)
    return times


def write_agent(directory: Path) -> Bundle:
    """Write files that no compression makes smaller."""
    for number in range(FILES):
        with (directory / f"part-{number}").open("wb") as file:
            for _ in range(AGENT_MB // FILES):
                file.write(os.urandom(1 << 20))
    return Bundle.of(directory, Path("/opt/agent"))


async def agent_starts(
    provider: E2bProvider, spec: SandboxSpec, agent: Path | None = None
) -> list[float]:
    """Return the milliseconds until a sandbox has the agent, by its template or by an upload."""
    times = list[float]()
    for _ in range(STARTS if agent is None else 1):
        began = time.perf_counter()
        sandbox = await provider.create(spec)
        if agent is not None:
            await sandbox.upload(agent, "/opt/agent")
        times.append((time.perf_counter() - began) * 1000)
        size = (await sandbox.exec("cat /opt/agent/* | wc -c")).stdout
        assert int(size) == AGENT_MB << 20, size
        await sandbox.teardown()
    return times


async def baked_agent(local: LocalProvider) -> None:
    """Print how long a sandbox with an agent of 400 MB starts, and that nothing is uploaded."""
    if shutil.disk_usage(tempfile.gettempdir()).free < FREE_MB << 20:
        print(f"clouds.agent400 needs {FREE_MB} MB of disk: skipped", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as directory:
        bundle = await asyncio.to_thread(write_agent, Path(directory))
        spec = SPEC.model_copy(update={"bundles": (bundle,)})
        async with (
            e2b_server(local) as (server, url),
            E2bProvider(api_key="e2b_test", api_url=url, sandbox_url=url, terms=TERMS) as provider,
        ):
            began = time.perf_counter()
            await (await provider.create(spec)).teardown()
            emit("clouds.agent400.bake", [time.perf_counter() - began], unit="s")
            sent = len(server.templates.uploads)
            baked = emit("clouds.agent400.baked", await agent_starts(provider, spec))
            assert len(server.templates.uploads) == sent
            assert set(server.written) == {"/.benchflow/token"}
            uploaded = await agent_starts(provider, SPEC, Path(directory))
            upload = emit("clouds.agent400.uploaded", uploaded)
            emit("clouds.agent400.ratio", [upload / baked], unit="x")


async def main() -> int:
    """Print the lines; fail if a limit is missed."""
    async with LocalProvider() as local, e2b_server(local) as (_, url):
        bare_run = emit("clouds.run.local", await local_runs(local))
        bare_fork = emit("clouds.fork10.local", await local_forks(local))
        sandbox = await AsyncSandbox.create(api_key="e2b_test", api_url=url, sandbox_url=url)
        runs, forks = await sdk_runs(sandbox), await sdk_forks(sandbox)
        await sandbox.kill()
        run = emit("clouds.run.e2b", runs, limit=RUN_LIMIT)
        fork = emit("clouds.fork10.e2b", forks, limit=FORK_LIMIT)
        ours = emit("clouds.fork10.e2b_provider", await provider_forks(url))
        emit("clouds.run.e2b.ratio", [run / bare_run], unit="x")
        emit("clouds.fork10.e2b.ratio", [fork / bare_fork], unit="x")
        emit("clouds.fork10.e2b_provider.ratio", [ours / bare_fork], unit="x")
        await baked_agent(local)
    return 1 if run > RUN_LIMIT or fork > FORK_LIMIT else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
