"""What compose builds of a task's file, both sandboxes build."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from benchflow_adapters_harbor import HarborAdapter
from benchflow_contracts import ImageRecipe, SandboxSpec
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
COMPOSE = """services:
  main:
    build:
      args: {{PACKAGE: hello}}
      target: final
      dockerfile_inline: |
        ARG BASE={image}
        FROM $$BASE AS wheels
        ARG PACKAGE
        WORKDIR /wheels
        COPY . .
        RUN --mount=type=bind,source=src,target=/src mkdir $$PACKAGE && cp -r /src/* $$PACKAGE/
        RUN ln -s "$$PACKAGE" current && ls -A > listed
        FROM $$BASE AS final
        SHELL ["/bin/bash", "-o", "pipefail", "-c"]
        ENV PATH="/opt/venv/bin:$$PATH" GREETING="hello  you"
        RUN groupadd -g 1234 app && useradd -u 1234 -g app -m app
        COPY --from=wheels --chown=app:app /wheels/current /opt/app
        COPY --from=wheels /wheels/listed /opt/
        COPY --chown=app scripts/*.sh linked /opt/scripts/
        USER app
        WORKDIR /opt/own/place
        RUN echo "$$PATH|$$GREETING|$$HOME|$$(id -un)" | tee said
        HEALTHCHECK --interval=1s CMD true
        CMD ["sleep", "infinity"]
        FROM $$BASE
        RUN false
"""
FILES = {
    "task.toml": "",
    "instruction.md": "Do.\n",
    "tests/test.sh": "#!/bin/sh\n",
    "environment/.dockerignore": "# all but\n*\n!src\n!scripts/*.sh\n!linked\n"
    "**/__pycache__\n*.md\n!src/*.md\n",
    "environment/src/main.py": "print()\n",
    "environment/src/read.md": "kept\n",
    "environment/src/__pycache__/main.pyc": "",
    "environment/scripts/run.sh": "#!/bin/sh\n",
    "environment/scripts/notes": "",
    "environment/secret": "",
}
LIST = "cd /opt && find . -exec stat -c '%A %u:%g %N' {} + | sort && cat listed own/place/said"


@pytest.fixture
def task(tmp_path: Path, image: str) -> Path:
    files = {**FILES, "environment/docker-compose.yaml": COMPOSE.format(image=image)}
    for name, text in files.items():
        path = tmp_path / "task" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "task/environment/scripts/run.sh").chmod(0o755)
    (tmp_path / "task/environment/linked").symlink_to("src/main.py")
    return tmp_path / "task"


@pytest.fixture
def by_compose(task: Path, compose: str) -> Iterator[str]:
    """What compose built, listed."""
    client = docker.APIClient(os.environ.get("DOCKER_HOST"), version="auto")
    name = f"built-alike-{os.getpid()}"
    env = {**os.environ, "DOCKER_CONFIG": compose, "PATH": f"{compose}/bin:{os.environ['PATH']}"}
    try:
        subprocess.run(
            ["docker", "compose", "-p", name, "build"],
            cwd=task / "environment",
            env=env,
            check=True,
            capture_output=True,
        )
        made = client.create_container(f"{name}-main", ["sh", "-c", LIST], user="0")["Id"]
        client.start(made)
        assert client.wait(made)["StatusCode"] == 0
        yield client.logs(made).decode()
        client.remove_container(made)
    finally:
        client.remove_image(f"{name}-main", force=True)
        client.close()


def test_a_dockerfile_in_a_compose_file_is_built_alike(
    task: Path, by_compose: str, tmp_path: Path
) -> None:
    recipe = HarborAdapter().load_task(task).parts.recipe
    assert recipe is not None
    for made_by in (DockerProvider, LocalProvider):
        assert asyncio.run(listed(made_by, recipe, tmp_path / made_by.__name__)) == by_compose


async def listed(
    made_by: type[DockerProvider] | type[LocalProvider], recipe: ImageRecipe, store: Path
) -> str:
    async with made_by(store=store) as provider:
        box = await provider.create(SandboxSpec(recipe=recipe, user="root", workdir="/"))
        done = await box.exec(LIST)
        assert done.ok, done
        return done.stdout
