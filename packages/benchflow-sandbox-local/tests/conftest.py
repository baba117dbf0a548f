import asyncio
import sys
from pathlib import Path

import pytest
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider

sys.path.insert(0, str(Path(__file__).parent))


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


@pytest.fixture
def broken(criu, tmp_path, monkeypatch):
    """Put a case of a shell script before the engine, which can be its action script, too."""

    def put(case):
        script = tmp_path / "engine"
        lines = ["#!/bin/sh", f"engine={criu}", f"case $1$CRTOOLS_SCRIPT_ACTION in {case} esac"]
        lines += ['[ "$CRTOOLS_SCRIPT_ACTION" ] || exec $engine "$@"']
        script.write_text("\n".join(lines))
        script.chmod(0o755)
        monkeypatch.setenv("BENCHFLOW_CRIU", str(script))

    return put
