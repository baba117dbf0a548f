"""What a sandbox that cannot be frozen loses before it is read, and what it keeps."""

import asyncio

import pytest
from benchflow_contracts import SandboxSpec, SandboxUnsupportedError
from benchflow_reward.at_rest import at_rest
from benchflow_testing.fakes import FakeSandbox, FakeSandboxProvider


class NeverStill(FakeSandbox):
    def freeze(self):
        raise SandboxUnsupportedError("nothing here holds a sandbox still")


def visited(sandbox_type, **how):
    async def main():
        provider = FakeSandboxProvider(sandbox_type=sandbox_type)
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.spawn("sleep 60")
        async with at_rest(sandbox, **how):
            left = process.group.alive
        await process.aclose()
        return left, provider.operations

    return asyncio.run(main())


def test_a_sandbox_that_can_be_frozen_keeps_its_processes():
    alive, operations = visited(FakeSandbox, may_kill=True)
    assert alive
    assert "kill_all" not in operations


def test_another_one_loses_them_before_it_is_read():
    alive, operations = visited(NeverStill, may_kill=True)
    assert not alive
    assert "kill_all" in operations


def test_processes_that_a_later_step_needs_are_not_killed():
    with pytest.raises(SandboxUnsupportedError, match="holds a sandbox still"):
        visited(NeverStill, may_kill=False)
