"""When images are fetched is said by an option, over the operator's variable."""

import asyncio

import pytest
from benchflow_contracts import SandboxError, SandboxSpec, UsageError
from benchflow_engine.flags import run_config
from benchflow_engine.planes import open_provider


def refusal(**options):
    """Return why a box of an image that is nowhere is not made."""

    async def main():
        async with open_provider(run_config(sandbox="docker", **options)) as provider:
            with pytest.raises(SandboxError) as caught:
                await provider.create(SandboxSpec(image="no-such-image:1"))
        return str(caught.value)

    return asyncio.run(main())


def test_what_is_said_outweighs_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHFLOW_DOCKER_PULL", "sometimes")
    with pytest.raises(UsageError, match="sometimes"):
        refusal()
    # It goes on to the engine, which is not there.
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "none.sock" in refusal(pull="never")
