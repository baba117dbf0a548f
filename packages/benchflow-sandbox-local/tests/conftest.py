import asyncio

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
def with_provider(root, store):
    """Run an async test against a provider of its own, which is closed after."""

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
