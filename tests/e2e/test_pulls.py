"""Images come from a real registry: as the policy says, whole, and with the user's credentials."""

import asyncio
import base64
import io
import json
import os
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import ImageRecipe, SandboxError, SandboxSpec
from benchflow_sandbox_docker import DockerProvider
from own_engine import ALONE, OwnEngine
from own_engine.registry import beside, registry

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
OPEN, CLOSED, BREAKING, NOBODY = 5000, 5001, 5002, 5003
CUT = """
import socket, sys, threading

def relay(source, target, left):
    while left > 0 and (data := source.recv(min(left, 65536))):
        target.sendall(data)
        left -= len(data)
    for each in (source, target):
        each.shutdown(socket.SHUT_RDWR)

with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        client, _ = server.accept()
        real = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
        for given in ((client, real, 1 << 20), (real, client, 1 << 16)):
            threading.Thread(target=relay, args=given, daemon=True).start()
"""


@pytest.fixture(scope="module")
def engine(registry_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEngine]:
    """An engine beside a registry, the same one for known users, and one that breaks off."""
    given = registry_program, tmp_path_factory.mktemp("images")
    breaking = [sys.executable, "-c", CUT, str(BREAKING), str(OPEN)]
    with closing(OwnEngine((*ALONE, "--max-download-attempts=1"))) as made:
        made.start()
        with (
            registry(made, *given, OPEN),
            registry(made, *given, CLOSED, users=True),
            beside(made, breaking, BREAKING),
        ):
            yield made


@pytest.fixture
def create(
    engine: OwnEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Make a sandbox of an image or of a recipe; return what `/which` holds in it."""
    (tmp_path / "config").mkdir()
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.setenv("DOCKER_CONFIG", f"{tmp_path}/config")

    def make(pull: Any = "missing", **spec: Any) -> str:
        async def main() -> str:
            async with DockerProvider(pull=pull, store=tmp_path / "store") as provider:
                box = await provider.create(SandboxSpec(user="", workdir="", **spec))
                await box.download("/which", tmp_path / "which")
                if "image" in spec:
                    told = engine.api.inspect_image(spec["image"])
                    # Of a tag that was moved by hand the engine knows no digest any more.
                    assert box.image_digests["main"] in (told["RepoDigests"] or [told["Id"]])
                return (tmp_path / "which").read_text()

        (tmp_path / "which").unlink(missing_ok=True)
        return asyncio.run(main())

    return make


def push(engine: OwnEngine, name: str, which: str) -> tuple[str, str]:
    """Give the registry an image that the engine then lacks; return its name and its digest."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in {"which": which.encode(), "more": os.urandom(1 << 18)}.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    repository = f"127.0.0.1:{OPEN}/{name}"
    engine.api.import_image_from_data(packed.getvalue(), repository=repository, tag="one")
    said = list(engine.api.push(repository, "one", stream=True, decode=True))
    engine.api.remove_image(f"{repository}:one")
    return f"{repository}:one", said[-1]["aux"]["Digest"]


def failed(create: Callable[..., str], **options: Any) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        create(**options)
    return caught.value


def test_a_tag_that_moved_is_fetched_when_the_policy_says_so(
    engine: OwnEngine, create: Callable[..., str]
) -> None:
    name, digest = push(engine, "moved", "first")
    assert "the pull policy is" in str(failed(create, image=name, pull="never"))
    assert create(image=name) == "first"
    first = engine.api.inspect_image(name)["Id"]
    push(engine, "moved", "second")
    engine.api.tag(first, *name.rsplit(":", 1))
    assert create(image=name) == "first"
    assert create(image=name, pull="never") == "first"
    assert create(image=name, pull="always") == "second"
    # A digest names the same bytes for ever.
    engine.api.remove_image(name)
    assert create(image=f"{name.removesuffix(':one')}@{digest}") == "first"


def test_what_the_registry_does_not_have_is_not_asked_for_again(
    engine: OwnEngine, create: Callable[..., str]
) -> None:
    name, _ = push(engine, "there", "x")
    for absent in (f"127.0.0.1:{OPEN}/absent:one", name.replace(":one", ":two")):
        error = failed(create, image=absent)
        assert absent in str(error)
        assert "correct the name" in error.hint
        assert not error.retryable
    error = failed(create, image=f"127.0.0.1:{NOBODY}/x:y")
    assert "connection refused" in str(error)
    assert error.retryable


def test_a_registry_that_breaks_off_within_a_layer_is_asked_again(
    engine: OwnEngine, create: Callable[..., str]
) -> None:
    name, _ = push(engine, "broken", "whole")
    broken = name.replace(str(OPEN), str(BREAKING))
    before = engine.holds()
    error = failed(create, image=broken)
    assert "EOF" in str(error)
    assert error.retryable
    assert engine.holds() == before
    assert create(image=name) == "whole"


# The SDK warns of the helper that is not there, and then raises.
@pytest.mark.filterwarnings("ignore:docker-credential-test not installed")
def test_credentials_are_those_of_dockers_own_client(
    engine: OwnEngine,
    create: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of this try alone: the engine has no image of an earlier one.
    name = push(engine, f"closed-{uuid.uuid4().hex}", "secret")[0].replace(str(OPEN), str(CLOSED))
    host, config = f"127.0.0.1:{CLOSED}", tmp_path / "config/config.json"
    (tmp_path / "Dockerfile").write_text(f"FROM {name}\nLABEL is=built\n")
    recipe = ImageRecipe(context=tmp_path, timeout_sec=60)
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\necho \'{"Username": "user", "Secret": "word"}\'\n')
    helper.chmod(0o755)

    def auths(word: str) -> str:
        token = base64.b64encode(f"user:{word}".encode()).decode()
        return json.dumps({"auths": {host: {"auth": token}}})

    def refused(hint: str) -> None:
        for error in (failed(create, image=name), failed(create, recipe=recipe)):
            assert hint in error.hint
            assert not error.retryable
            assert "word" not in str(error)

    refused(f"docker login {host}")
    config.write_text(auths("wrong"))
    refused(f"docker login {host}")
    config.write_text(json.dumps({"credHelpers": {host: "test"}}))
    refused("install the credential helper")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert create(image=name) == "secret"
    engine.api.remove_image(name)
    config.write_text(auths("word"))
    assert create(recipe=recipe) == "secret"
