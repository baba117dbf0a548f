import asyncio

import pytest
from benchflow_contracts.errors import (
    SandboxError,
    SandboxUnsupportedError,
    UsageError,
)
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_docker import DockerProvider


def create(tmp_path, **spec):
    async def main():
        async with DockerProvider(store=tmp_path / "store") as provider:
            await provider.create(SandboxSpec(**spec))

    asyncio.run(main())


def test_an_engine_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxUnsupportedError, match=r"none\.sock"):
        create(tmp_path)


def test_an_engine_on_another_host_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    with pytest.raises(UsageError, match="on this host"):
        create(tmp_path)


@pytest.mark.usefixtures("image")
def test_what_cannot_be_made_is_refused_and_leaves_nothing(tmp_path):
    absent = f"sha256:{'0' * 64}"
    with pytest.raises(SandboxError, match=f"no image '{absent}'"):
        create(tmp_path, image=absent)
    with pytest.raises(UsageError, match="'http://a'"):
        create(tmp_path, network="allowlist", allowed_hosts=("http://a",))
    with pytest.raises(UsageError):
        create(tmp_path, workdir="/a/../b")
    assert list((tmp_path / "store").iterdir()) == []
