import asyncio
import os
import shutil

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider


@pytest.fixture(scope="session", autouse=True)
def verdicts(tmp_path_factory):
    """Remember what the live probe found for the length of this run, and no longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def with_provider(store):
    """Run an async test against a provider of its own, which is closed after."""
    if os.geteuid() != 0:
        # A developer may lack root; a CI that lacks it would test nothing and look green.
        (pytest.fail if os.environ.get("CI") else pytest.skip)("boxes with users need root")

    def run(test, **options):
        async def main():
            async with LocalProvider(store=store, **options) as provider:
                return await test(provider)

        return asyncio.run(main())

    return run


@pytest.fixture
def with_box(with_provider):
    """Run an async test against one sandbox, made from the keywords of a spec."""

    def run(test, **spec):
        async def main(provider):
            sandbox = await provider.create(SandboxSpec(**spec))
            return await test(sandbox)

        return with_provider(main)

    return run


@pytest.fixture
def engine():
    """The program that takes live snapshots. `.ci/criu` unpacks one."""
    program = os.environ.get("BENCHFLOW_CRIU") or shutil.which("criu")
    if program is None:
        why = "no CRIU program: export BENCHFLOW_CRIU=$(.ci/criu)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    return program
