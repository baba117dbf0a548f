"""One small session in each real cloud: `pytest -m cloud` on this file, with the keys of `KEYS`.

The marker `cloud` is not selected by default, so no key of the environment is used by accident. A
session makes one sandbox after the other for at most ten minutes, and deletes what is left. The
same session runs against our server of one cloud, so that its own code is tested.
"""

import asyncio
import os
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_remote import BoxSize
from benchflow_sandbox_remote.provider import OWNER
from benchflow_testing import check_sandbox
from remote_backends import daytona

KEYS = {
    "daytona": ["DAYTONA_API_KEY"],
    "daytona-vm": ["DAYTONA_API_KEY"],
    "e2b": ["E2B_API_KEY"],
    "kubernetes": ["KUBECONFIG"],
    "modal": ["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"],
    "remote": ["BENCHFLOW_REMOTE_HOST"],
}
CHECKS = (
    "exec_keeps_stdout_and_stderr_apart",
    "exec_feeds_stdin_and_closes_it",
    "exec_runs_as_the_given_user",
    "a_timeout_kills_the_whole_group",
    "a_file_is_unchanged_after_upload_and_download",
    "spawn_streams_megabytes_both_ways_at_once",
    "freeze_stops_every_process",
    "records_have_the_identity",
    "network_none_has_no_route",
    "a_public_network_has_a_route",
    "the_model_answers_in_every_network_but_none",
    "a_rollout_is_graded",
    "closing_the_provider_leaves_no_sandbox",
)
SECONDS = 600
MOST_USD = 0.25


async def run_session(provider, checks=CHECKS):
    """Return the names and the reasons of the checks that failed, and the sandboxes left over."""
    prices = provider._terms and provider._terms.prices
    if prices is not None:
        size = BoxSize(vcpus=4, memory_mb=8192)
        assert prices.per_second(size) * SECONDS < MOST_USD, "the session would cost too much"
    await provider.ready()
    try:
        async with asyncio.timeout(SECONDS):
            report = await check_sandbox(provider, only=checks)
    finally:
        cloud = provider._cloud
        ours = [each async for each in cloud.list(OWNER) if owner(each) == provider._owner.id]
        for each in ours:
            await cloud.delete(each.id)
        await provider.aclose()
    return {each.name: each.reason for each in report if each.status == "failed"}, ours


def owner(record):
    return record.labels[OWNER]


@pytest.mark.cloud
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("name", KEYS)
def test_a_real_cloud_keeps_the_promises_of_a_small_session(name):
    if missing := [key for key in KEYS[name] if not os.environ.get(key)]:
        pytest.skip(f"not set: {', '.join(missing)}")
    (found,) = entry_points(group="benchflow.sandboxes", name=name)
    assert asyncio.run(run_session(found.load()())) == ({}, [])


@pytest.mark.timeout(120)
def test_the_session_of_a_real_cloud_finds_what_fails_and_what_is_left():
    async def main():
        # In this order, the last check does not close the provider.
        some = [CHECKS[0], "a_public_network_has_a_route"]
        async with (
            LocalProvider() as local,
            daytona.account(local, {}) as (provider, server),
        ):
            sandbox = await provider.create(SandboxSpec())
            failed, left = await run_session(provider, some)
            assert server.made == {}
        return failed.keys(), [each.id for each in left] == [sandbox.id]

    failed, is_found = asyncio.run(main())
    assert failed == {"a_public_network_has_a_route"}  # our server has no network
    assert is_found


def test_every_provider_of_a_cloud_has_a_session():
    clouds = {path.stem for path in Path(daytona.__file__).parent.glob("[a-z]*.py")}
    assert clouds <= KEYS.keys()
