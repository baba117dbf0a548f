"""Images with little in them: busybox, another libc, no bash, and no shell at all."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow_contracts import ImageRecipe, SandboxSpec
from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider
from own_engine import docker_of_the_machine
from own_engine.marked import marked_images

BENCH = Path(sys.executable).with_name("bench")
PROGRAM = """#include <stdio.h>
#include <pwd.h>
int main(void) { return printf("%s\\n", getpwuid(0)->pw_name) < 0; }
"""
DOCKERFILE = """FROM scratch
LABEL test={mark}
COPY root /
WORKDIR /app
RUN <<EOF
echo "built by $(id -u)" > made
EOF
"""
TESTS = """#!/bin/sh
grep -q hello /app/out && grep -q built /app/made && echo 1 > /logs/verifier/reward.txt
"""


def tool(name):
    found = shutil.which(name)
    assert found is not None, f"no {name}: install busybox-static and musl-tools"
    return found


@pytest.fixture(params=["docker", "local"])
def sandbox(request):
    """The name of a provider that can be had here."""
    if request.param == "docker":
        request.getfixturevalue("image")
    return request.param


@pytest.fixture
def with_box(sandbox, tmp_path):
    """Run an async test against a box of a recipe."""

    def run(context, test):
        async def main():
            makes = {"docker": DockerProvider, "local": LocalProvider}[sandbox]
            async with makes(store=tmp_path / "store") as provider:
                recipe = ImageRecipe(context=context, timeout_sec=120)
                spec = SandboxSpec(recipe=recipe, user="", workdir="")
                await test(provider, await provider.create(spec))

        asyncio.run(main())

    return run


@pytest.fixture
def mark(sandbox, tmp_path, monkeypatch):
    """A word for `LABEL test=`, of images that go after the test."""
    if sandbox == "local":
        # It keeps them here.
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        yield "local"
        return
    with docker_of_the_machine() as api, marked_images(api) as mark:
        yield mark


@pytest.fixture
def busybox(mark, tmp_path):
    """A context of busybox alone: no library, no /etc, no /tmp, no bash."""
    context = tmp_path / "context"
    programs = context / "root" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(tool("busybox"), programs / "busybox")
    listed = subprocess.run([tool("busybox"), "--list"], capture_output=True, text=True, check=True)
    for name in set(listed.stdout.split()) - {"busybox"}:
        (programs / name).symlink_to("busybox")
    (context / "Dockerfile").write_text(DOCKERFILE.replace("{mark}", mark))
    return context


def test_a_box_of_busybox_does_what_others_do(with_box, busybox, tmp_path):
    given = tmp_path / "given"
    (given / "deep").mkdir(parents=True)
    (given / "deep" / "file").write_text("uploaded\n")

    async def check(provider, box):
        assert (await box.exec("cat made; pwd; echo $0")).stdout == "built by 0\n/app\n/bin/sh\n"
        assert (await box.exec(["/bin/sh", "-c", "exit 3"])).exit_code == 3
        await box.upload(given, "/put")
        image = await box.snapshot()
        assert (await box.exec("echo more >> /put/deep/file")).ok
        await box.download("/put", tmp_path / "got")
        assert (tmp_path / "got/deep/file").read_text() == "uploaded\nmore\n"
        await box.restore(image)
        fork = await provider.create(box.spec, image=image)
        for each in (box, fork):
            assert (await each.exec("cat /put/deep/file")).stdout == "uploaded\n"
        process = await box.spawn(["cat"])
        await process.stdin.write(b"live\n")
        assert await process.stdout.read() == b"live\n"
        await process.stdin.aclose()
        assert await process.wait() == 0

    with_box(busybox, check)


def test_a_program_of_another_libc_runs(with_box, busybox, tmp_path):
    source = tmp_path / "program.c"
    source.write_text(PROGRAM)
    program = busybox / "root" / "bin" / "musl"
    subprocess.run([tool("musl-gcc"), "-o", program, source], check=True)
    (loader,) = Path("/lib").glob("ld-musl-*.so.1")
    (busybox / "root" / "lib").mkdir()
    shutil.copy(loader, busybox / "root" / "lib" / loader.name)

    async def check(_, box):
        assert (await box.exec("musl")).stdout == "root\n"

    (busybox / "root" / "etc").mkdir()
    (busybox / "root" / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\n")
    with_box(busybox, check)


def test_without_a_shell_only_programs_run_and_the_rest_is_a_typed_error(with_box, busybox, mark):
    programs = busybox / "root" / "bin"
    for each in programs.iterdir():
        if each.name not in {"busybox", "cat"}:
            each.unlink()
    (busybox / "Dockerfile").write_text(f"FROM scratch\nLABEL test={mark}\nCOPY root /\n")

    async def check(_, box):
        assert (await box.exec(["/bin/cat"], stdin=b"there")).stdout == "there"
        with pytest.raises(SandboxError, match=r"cannot be started.*/bin/sh"):
            await box.exec("echo hello")
        with pytest.raises(SandboxError, match="cannot be started"):
            await box.spawn("echo hello")
        await box.snapshot()

    with_box(busybox, check)


def test_a_harbor_task_of_busybox_is_solved_and_graded(sandbox, busybox, tmp_path):
    task = tmp_path / "task"
    (task / "tests").mkdir(parents=True)
    (task / "solution").mkdir()
    busybox.rename(task / "environment")
    (task / "task.toml").write_text('version = "1.0"\n')
    (task / "instruction.md").write_text("Write hello to /app/out.\n")
    (task / "tests" / "test.sh").write_text(TESTS)
    (task / "solution" / "solve.sh").write_text("#!/bin/sh\necho hello > /app/out\n")
    job = [BENCH, "run", task, "--offline", "--sandbox", sandbox, "--agent"]
    for agent, reward in (("oracle", "reward 1"), ("nop", "RewardFileNotFoundError")):
        ran = subprocess.run(
            [*job, agent], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert reward in ran.stderr, ran.stdout + ran.stderr
