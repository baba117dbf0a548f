"""Servers whose answers are not of their API: SDKs of clouds against our servers.

Nothing here runs on a cloud.
"""

import asyncio
import importlib
from contextlib import suppress
from functools import partial
from itertools import product
from typing import get_args

import pytest
from benchflow_contracts.errors import BenchFlowError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run_in
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_remote import cloud as calls
from benchflow_sandbox_remote import provider as remote
from benchflow_testing_clouds.garbage import GRPC_KINDS, KINDS, Stage

IMAGES = {
    "e2b": "base",
    "daytona": "default",
    "modal": "debian:bookworm-slim",
    "kubernetes": "debian:stable-slim",
}


def end_soon(limit):
    """End the block of `limit` a second after the first endless answer has begun."""
    soon = asyncio.get_running_loop().time() + 1
    if not limit.expired() and limit.when() > soon:
        limit.reschedule(soon)


async def use(provider, server, stage, kind):
    """Create a sandbox, list it and delete it, while one stage has answers of no API.

    Return what failed. An error that is not typed leaves this function.
    """
    failed, sandbox = [], None
    with server.garbage.on(stage, kind):
        try:
            async with asyncio.timeout(60) as limit:
                if kind == "endless" and stage != "delete":
                    server.garbage.on_answer = partial(end_soon, limit)
                sandbox = await provider.create(SandboxSpec())
                assert (await sandbox.exec("echo here")).stdout == "here\n"
        except BenchFlowError:
            failed.append("create")
        except TimeoutError:
            assert kind == "endless"
            failed.append("create")
        server.garbage.on_answer = lambda: None
        try:
            async for _ in provider.sandboxes():
                pass
        except BenchFlowError:
            failed.append("list")
        if sandbox is not None:
            try:
                await sandbox.teardown()
            except BenchFlowError:
                failed.append("delete")
        assert server.garbage.answers > 0
    with suppress(BenchFlowError):
        if sandbox is not None:
            await sandbox.teardown()
    return failed


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("cloud", "stage"),
    [each for each in product(IMAGES, get_args(Stage)) if each != ("modal", "read")],
)
def test_an_answer_of_no_api_is_a_typed_error_and_leaves_no_sandbox(cloud, stage, monkeypatch):
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(remote, "_LIST_SECONDS", 1.0)
    backend = importlib.import_module(f"remote_backends.{cloud}")
    # Daytona's SDK must read a sandbox before it deletes one. Otherwise the sandbox ends with its
    # lifetime.
    is_limited = (cloud, stage) == ("daytona", "read")

    async def main():
        left, failed = {}, {}
        async with (
            LocalProvider() as local,
            backend.account(local, {IMAGES[cloud]: SandboxSpec()}) as (provider, server),
        ):
            for kind in GRPC_KINDS if cloud == "modal" else KINDS:
                if (stage, kind) == ("delete", "endless"):
                    monkeypatch.setattr(calls, "_CALL_SECONDS", 3.0)
                failed[kind] = await use(provider, server, stage, kind)
                left[kind] = [] if is_limited else list(server.made)
                assert all(each.ends for each in server.made.values()) or not is_limited
        return left, failed

    left, failed = asyncio.run(main())
    assert not any(left.values()), left
    # The SDKs read no more than the status of some answers to a deletion, but each to its end.
    if stage == "delete":
        assert failed["endless"], failed
    # E2B's sandbox is used without a wait for what is read of it.
    elif (cloud, stage) != ("e2b", "read"):
        assert any(failed.values()), failed


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("cloud", "stage"),
    [("e2b", "create"), ("daytona", "create"), ("modal", "create"), ("kubernetes", "command")],
)
def test_an_answer_of_no_api_for_the_sandbox_of_the_grading_gives_no_reward(
    cloud, stage, tmp_path, monkeypatch
):
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.01)
    backend = importlib.import_module(f"remote_backends.{cloud}")
    write_task(tmp_path / "task")

    async def main():
        async with (
            LocalProvider() as local,
            backend.account(local, {IMAGES[cloud]: SandboxSpec()}) as (provider, server),
        ):
            create = provider.create

            async def watched(spec, **options):
                sandbox = await create(spec, **options)
                server.garbage.stage, server.garbage.kind = stage, "no fields"
                return sandbox

            provider.create = watched
            config = run_config(agent="oracle")
            result = await run_in(
                provider, runnable_task(tmp_path / "task"), config, directory=tmp_path / "r"
            )
            server.garbage.stage = None
            assert server.garbage.answers > 0
            assert server.made == {}
            return result

    result = asyncio.run(main())
    assert (result.record.status, result.reward) == ("ungraded", None)
