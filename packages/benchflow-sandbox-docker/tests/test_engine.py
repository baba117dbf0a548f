import asyncio
import hashlib
import json
from pathlib import Path

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


def test_a_provider_without_an_engine_is_not_ready(tmp_path, monkeypatch):
    async def ask():
        async with DockerProvider(store=tmp_path / "store") as provider:
            await provider.ready()

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxUnsupportedError, match=r"none\.sock"):
        asyncio.run(ask())


def test_an_engine_on_another_host_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    with pytest.raises(UsageError, match="on this host"):
        create(tmp_path)


@pytest.fixture
def contexts(tmp_path, monkeypatch):
    """Give Docker's client a context with this host, and let it be the current one."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def use(host, name="mine"):
        meta = tmp_path / "contexts/meta" / hashlib.sha256(b"mine").hexdigest()
        meta.mkdir(parents=True, exist_ok=True)
        (meta / "meta.json").write_text(json.dumps({"Endpoints": {"docker": {"Host": host}}}))
        (tmp_path / "config.json").write_text(json.dumps({"currentContext": name}))

    return use


def test_the_engine_is_that_of_the_current_context(tmp_path, monkeypatch, contexts):
    contexts(f"unix://{tmp_path}/mine.sock")
    with pytest.raises(SandboxUnsupportedError, match=r"mine\.sock"):
        create(tmp_path)
    contexts("ssh://far.example", name="default")
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    with pytest.raises(UsageError, match=r"context 'mine' is 'ssh://far.example': .* on this host"):
        create(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/first.sock")
    with pytest.raises(SandboxUnsupportedError, match=r"first\.sock"):
        create(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 5000, '{"currentContext": "none"}'])
def test_settings_that_name_no_engine_are_refused_with_their_place(tmp_path, contexts, text):
    contexts("unix:///x")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        create(tmp_path)
    assert str(tmp_path) in caught.value.where


@pytest.mark.usefixtures("image")
def test_what_cannot_be_made_is_refused_and_leaves_nothing(tmp_path):
    absent = f"sha256:{'0' * 64}"
    with pytest.raises(SandboxError, match=f"image '{absent}'"):
        create(tmp_path, image=absent)
    with pytest.raises(UsageError, match="'http://a'"):
        create(tmp_path, network="allowlist", allowed_hosts=("http://a",))
    with pytest.raises(UsageError):
        create(tmp_path, workdir="/a/../b")
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.usefixtures("image")
def test_the_memory_is_that_of_the_machine_of_the_engine(tmp_path):
    async def ask():
        async with DockerProvider(store=tmp_path / "store") as provider:
            return await provider.memory_total_mb()

    total = int(Path("/proc/meminfo").read_text("ascii").split()[1]) // 1024
    assert asyncio.run(ask()) == total
