import asyncio
import os

import docker
import pytest
from benchflow_contracts import ImageRecipe, ServiceSpec
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_docker import DockerProvider
from own_engine.marked import marked_images


@pytest.fixture
def api(image):
    """A client of the engine that has the base image."""
    assert image
    client = docker.APIClient(os.environ.get("DOCKER_HOST"), version="auto")
    yield client
    client.close()


@pytest.fixture
def with_provider(image, tmp_path):
    """Run an async test against a provider of its own, which is closed after."""

    def run(test):
        async def main():
            async with DockerProvider(image=image, store=tmp_path / "store") as provider:
                return await test(provider)

        return asyncio.run(main())

    return run


@pytest.fixture
def with_box(with_provider):
    """Run an async test against one sandbox, made from the keywords of a spec."""

    def run(test, **spec):
        async def main(provider):
            return await test(await provider.create(SandboxSpec(**spec)))

        return with_provider(main)

    return run


@pytest.fixture
def web(image):
    """Specify a service that serves `/srv`."""
    serve = ("python3", "-m", "http.server", "8000", "--directory", "/srv")

    def make(name="web", **more):
        given = {"image": image, "command": serve, "workdir": "/srv", **more}
        return ServiceSpec(name=name, **given)

    return make


@pytest.fixture
def mark(api):
    with marked_images(api) as mark:
        yield mark


@pytest.fixture
def recipe(image, tmp_path, mark):
    """Write a context whose Dockerfile begins with our base image."""
    context = tmp_path / "context"
    context.mkdir()

    def write(dockerfile="", base=image, timeout_sec=60, **files):
        text = f"FROM {base}\nLABEL test={mark}\n{dockerfile}"
        for name, content in {"Dockerfile": text, **files}.items():
            (context / name).write_text(content)
        return ImageRecipe(context=context, timeout_sec=timeout_sec)

    return write
