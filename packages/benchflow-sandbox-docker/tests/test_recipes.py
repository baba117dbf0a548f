import asyncio
import os
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import docker
import pytest
from benchflow_contracts import ImageRecipe, ReapPolicy, SandboxSpec
from benchflow_contracts.errors import SandboxError, SandboxTimeoutError, TaskError
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_docker.building import build as build_module
from benchflow_sandbox_docker.building import recipes as module

RUNNER = """
import asyncio, sys
from pathlib import Path
from benchflow_contracts import ImageRecipe, SandboxSpec
from benchflow_sandbox_docker import DockerProvider

async def main():
    recipe = ImageRecipe(context=Path(sys.argv[1]))
    async with DockerProvider(store=Path(sys.argv[2])) as provider:
        box = await provider.create(SandboxSpec(recipe=recipe))
        print((await box.exec("cat /made")).stdout, end="")

asyncio.run(main())
"""


async def until(condition):
    """Wait for what the engine does in its own time, and tells nobody."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.05)


def commands():
    """What runs on this host."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes()


@pytest.fixture
def builds(monkeypatch):
    """The names of the images that are built in this process."""
    made = []
    run = module.Build.run

    async def counted(self, tag, options):
        made.append(tag)
        await run(self, tag, options)

    monkeypatch.setattr(module.Build, "run", counted)
    return made


def test_an_image_is_built_up_to_a_stage_with_its_arguments(with_provider, recipe, image):
    stages = "ARG WHAT=none\nRUN echo $WHAT > /made\nFROM first\nRUN rm /made\n"
    plain = recipe(stages, base=f"{image} AS first")
    asked = [
        plain.model_copy(update={"args": (("WHAT", what),), "target": "first"})
        for what in ("this", "that")
    ]

    async def test(provider):
        boxes = [await provider.create(SandboxSpec(recipe=each)) for each in asked]
        return [(await box.exec("cat /made")).stdout for box in boxes]

    assert with_provider(test) == ["this\n", "that\n"]


def test_here_documents_contain_the_arguments_of_the_build(with_provider, recipe, image):
    text = """RUN <<EOF
mkdir /made
EOF
ARG WHAT=default
ARG BEFORE
COPY <<EOF /made/file
$WHAT $BEFORE $UNSAID
EOF
FROM scratch
"""
    plain = recipe(text, base="${BASE} AS first")
    dockerfile = plain.context / "Dockerfile"
    dockerfile.write_text(f"ARG BASE=none\nARG BEFORE=1\n{dockerfile.read_text()}")
    args = (("BASE", image), ("WHAT", "given"), ("UNSAID", "x"))
    asked = plain.model_copy(update={"args": args, "target": "first"})

    async def test(provider):
        box = await provider.create(SandboxSpec(recipe=asked))
        return (await box.exec("cat /made/file")).stdout

    assert with_provider(test) == "given 1 \n"


def test_files_of_any_name_may_be_the_first_of_a_context(with_provider, recipe):
    names = {"0\N{LATIN SMALL LETTER E WITH ACUTE}": "accented", "A" * 120: "long"}
    made = recipe("COPY --chmod=640 0* A* /made/\n", **names)

    async def test(provider):
        box = await provider.create(SandboxSpec(recipe=made, user="root"))
        return (await box.exec("cat /made/*")).stdout

    assert with_provider(test) == "accentedlong"


def test_eight_that_ask_at_once_get_one_image_and_a_change_makes_another(
    with_provider, recipe, builds, tmp_path
):
    made = recipe("COPY given /made\nRUN echo built >> /made\nUSER 7\nWORKDIR /own\n", given="1\n")

    async def check(provider):
        spec = SandboxSpec(recipe=made, user="", workdir="")
        async with asyncio.TaskGroup() as group:
            boxes = [group.create_task(provider.create(spec)) for _ in range(8)]
        for box in boxes:
            assert (
                await box.result().exec("cat /made; id -u; pwd")
            ).stdout == "1\nbuilt\n7\n/own\n"
        assert len(builds) == 1
        (tmp_path / "context" / "given").write_text("2\n")
        box = await provider.create(spec)
        assert (await box.exec("cat /made")).stdout == "2\nbuilt\n"
        assert len(builds) == 2
        # An older state is found again, also by another provider.
        (tmp_path / "context" / "given").write_text("1\n")
        async with DockerProvider(store=tmp_path / "another") as another:
            box = await another.create(spec)
            assert (await box.exec("cat /made")).stdout == "1\nbuilt\n"
        assert len(builds) == 2

    with_provider(check)


@pytest.mark.usefixtures("api")
def test_processes_that_ask_at_once_build_once(recipe, tmp_path):
    # A second run would write another time than the first, which the cache would then keep.
    made = recipe("COPY given /\nRUN date +%N > /made && sleep 0.5\n", given=uuid.uuid4().hex)
    command = [sys.executable, "-c", RUNNER, str(made.context), str(tmp_path / "store")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    said = {process.communicate(timeout=120)[0] for process in started}
    assert len(said) == 1
    assert said != {b""}


@pytest.mark.parametrize(
    ("dockerfile", "where", "words"),
    [
        ("RUN echo one && \\\n    echo the reason >&2 && false\n", "Dockerfile:3", "the reason"),
        ("\n# comment\nCOPY absent /\n", "Dockerfile:5", "absent"),
        ("NONSENSE x\n", "Dockerfile:3", "NONSENSE"),
        (
            "RUN --mount=type=tmpfs,target=/x \\\n echo the reason && false\n",
            "Dockerfile:3",
            "the reason",
        ),
        ("COPY --chmod=600 . /\nRUN echo the reason && false\n", "Dockerfile:4", "the reason"),
        ("COPY --no-such=x a /\n", "Dockerfile:3", "no-such"),
        ("RUN <<EOF\necho the reason\nfalse\nEOF\n", "Dockerfile:3", "the reason"),
        ("RUN <<EOF\ntrue\n", "Dockerfile:3", "does not end"),
    ],
)
def test_a_build_that_fails_names_the_line_and_shows_the_end(
    with_provider, recipe, dockerfile, where, words
):
    made = recipe(dockerfile)

    async def check(provider):
        with pytest.raises((SandboxError, TaskError), match=words) as caught:
            await provider.create(SandboxSpec(recipe=made))
        assert caught.value.where == where

    with_provider(check)


@pytest.mark.parametrize("flag", ["", " --mount=type=tmpfs,target=/x"])
def test_a_build_ends_with_its_time_or_its_caller_and_leaves_nothing(
    with_provider, recipe, api, flag
):
    word = uuid.uuid4().hex
    made = recipe(f"RUN{flag} echo begun; sleep 1001; : {word}\n")

    def runs():
        return any(word.encode() in command for command in commands())

    def containers():
        return [each for each in api.containers(all=True) if word in each["Command"]]

    async def late(provider, seconds):
        given = made.model_copy(update={"timeout_sec": seconds})
        with pytest.raises(SandboxTimeoutError, match=f"not built in {seconds} s") as caught:
            await provider.create(SandboxSpec(recipe=given))
        return caught.value

    async def check(provider):
        error = await late(provider, 3)
        if "begun" not in str(error):
            error = await late(provider, 30)  # the machine is too busy for the first
        assert error.where == "Dockerfile:3"
        assert "begun" in str(error)
        await until(lambda: not runs())
        long = made.model_copy(update={"timeout_sec": 500})
        async with asyncio.TaskGroup() as group:
            task = group.create_task(provider.create(SandboxSpec(recipe=long)))
            await until(runs)
            task.cancel()
        await until(lambda: not runs() and not containers())

    with_provider(check)


TODAY = """# syntax=docker/dockerfile:1
ARG BASE={image}
FROM $BASE AS made
ARG TARGETARCH
WORKDIR /made
RUN --mount=type=cache,id={mark},target=/cache echo once >> /cache/seen && cp /cache/seen .
RUN --mount=type=bind,target=/given --mount=type=tmpfs,target=/scratch <<EOF
cp /given/file /scratch/
cat /scratch/file > "given-$TARGETARCH"
EOF
RUN <<EOF
#!/usr/bin/env python3
import sys
open("/made/python", "w").write(sys.argv[0])
EOF

FROM $BASE
LABEL test={mark}
ENV WHO=you
COPY --link --chmod=0751 --from=made /made /made
COPY --chown=7:8 <<EOF /made/text
"hello" $WHO \\$WHO
EOF
COPY file <<first <<-'second' /files/
1
first
\t$WHO
\tsecond
"""


def test_a_dockerfile_of_today_is_built_by_an_engine_of_2020(
    with_provider, image, tmp_path, api, mark
):
    (tmp_path / "Dockerfile").write_text(TODAY.format(image=image, mark=mark))
    (tmp_path / "file").write_text("given\n")
    made = ImageRecipe(context=tmp_path, timeout_sec=120)

    def documents():
        return {each["Id"] for each in api.images(name="benchflow-documents", all=True)}

    async def check(provider):
        before = documents()
        box = await provider.create(SandboxSpec(recipe=made, user="root"))
        said = await box.exec(
            "cd /made; cat seen given-* python; echo; cat text; "
            "stat -c %n:%u:%g:%a seen text; cd /files; cat file first second; ls"
        )
        lines = (
            *("once", "given", "/dev/shm/EOF", '"hello" you $WHO'),
            *("seen:0:0:751", "text:7:8:644", "given", "1", "$WHO", "file", "first", "second"),
        )
        assert said.stdout.splitlines() == [*lines], said
        # Others may build at the same time, or have been killed while they did.
        await until(lambda: documents() <= before)

    with_provider(check)


def test_no_frontend_is_fetched(with_provider, tmp_path):
    (tmp_path / "Dockerfile").write_text("# syntax=evil.example/frontend\nFROM scratch\n")

    async def check(provider):
        with pytest.raises(SandboxError, match=r"evil.example.*is not supported") as no:
            await provider.create(SandboxSpec(recipe=ImageRecipe(context=tmp_path)))
        assert no.value.where == "Dockerfile:1"

    with_provider(check)


def test_a_dockerfile_that_is_copied_keeps_its_permissions_and_its_time(with_provider, recipe):
    made = recipe("COPY . /in\n")
    file = made.context / "Dockerfile"
    file.chmod(0o640)
    os.utime(file, (10**9, 10**9))

    async def test(provider):
        box = await provider.create(SandboxSpec(recipe=made, user="root"))
        return (await box.exec("stat -c '%a %Y' /in/Dockerfile")).stdout

    assert with_provider(test) == "640 1000000000\n"


def test_ignored_files_and_targets_of_links_are_not_in_the_context(with_provider, recipe, tmp_path):
    made = recipe("COPY . /in\n", **{".dockerignore": "secret*\n", "secret": "s", "kept": "k"})
    (tmp_path / "context" / "out").symlink_to("/etc/shadow")
    (tmp_path / "outside").write_text("the host's")
    (tmp_path / "context" / "up").symlink_to("../outside")

    async def check(provider):
        box = await provider.create(SandboxSpec(recipe=made))
        assert (await box.exec("ls /in; readlink /in/out /in/up")).stdout.split() == [
            *("Dockerfile", "kept", "out", "up"),
            *("/etc/shadow", "../outside"),
        ]
        os.mkfifo(tmp_path / "context" / "pipe")
        with pytest.raises(SandboxError, match="pipe"):
            await provider.create(SandboxSpec(recipe=made))

    with_provider(check)


HIDING = """FROM {image} AS made
LABEL test={mark}
COPY . /in/
RUN --mount=target=/given ls -A /given > /in/seen
FROM scratch
"""


@pytest.mark.parametrize("inline", [False, True])
def test_a_dockerfile_that_the_context_does_not_show_is_copied_by_nothing(
    with_provider, tmp_path, image, mark, api, inline
):
    text = HIDING.format(image=image, mark=mark)
    for name, content in {"kept": "", "Dockerfile": "" if inline else text}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / ".dockerignore").write_text(".dockerignore\nDockerfile\nstore\n")
    said = {"inline": text, "dockerfile": "kept"} if inline else {}
    recipe = ImageRecipe(context=tmp_path, target="made", timeout_sec=60, **said)

    async def check(provider):
        box = await provider.create(SandboxSpec(recipe=recipe))
        shown = await box.exec("cat /in/seen; ls -A /in; wc -c < /in/kept")
        assert shown.stdout.split() == ["kept", "kept", "seen", "0"], shown
        assert not api.images(name="benchflow-context", all=True)

    with_provider(check)


def test_a_base_that_moved_makes_another_image(with_provider, recipe, api, image, builds):
    base = f"benchflow-test-{uuid.uuid4().hex}"
    api.tag(image, base)
    made = recipe("RUN true\n", base=base)

    async def check(provider):
        await provider.create(SandboxSpec(recipe=made))
        moved = (await provider.create(SandboxSpec())).container
        await moved.engine.do("commit", moved.running.container, base, changes=["ENV MOVED=1"])

    async def again(provider):
        box = await provider.create(SandboxSpec(recipe=made))
        assert (await box.exec("echo $MOVED")).stdout == "1\n"

    try:
        with_provider(check)
        with_provider(again)
        assert len(set(builds)) == 2
    finally:
        api.remove_image(base, force=True)


def test_an_image_that_was_removed_meanwhile_is_built_again(with_provider, recipe, api, builds):
    made = recipe("RUN true\n")

    async def check(provider):
        box = await provider.create(SandboxSpec(recipe=made))
        await box.teardown()
        api.remove_image(builds[0])
        box = await provider.create(SandboxSpec(recipe=made))
        assert (await box.exec("true")).ok
        assert len(builds) == 2

    with_provider(check)


def test_pruning_removes_images_of_recipes_that_nobody_uses(with_provider, recipe, api, builds):
    made = recipe("RUN true\n")

    async def check(provider):
        box = await provider.create(SandboxSpec(recipe=made))
        policy = ReapPolicy(scope="none", built_images=True)
        await provider.reap(policy)
        assert api.inspect_image(builds[0])
        await box.teardown()
        await provider.reap(policy.model_copy(update={"dry_run": True}))
        await provider.reap(ReapPolicy(scope="none"))
        assert api.inspect_image(builds[0])
        await provider.reap(policy)
        with pytest.raises(docker.errors.ImageNotFound):
            api.inspect_image(builds[0])

    with_provider(check)


def test_nothing_is_pulled_if_the_operator_forbids_it(image, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHFLOW_DOCKER_PULL", "never")
    absent = f"benchflow-absent-{uuid.uuid4().hex}"

    async def main():
        async with DockerProvider(image=image, store=tmp_path / "store") as provider:
            await provider.create(SandboxSpec(recipe=recipe()))
            with pytest.raises(SandboxError, match=f"base image '{absent}' is missing"):
                await provider.create(SandboxSpec(recipe=recipe(base=absent)))
            with pytest.raises(SandboxError, match=f"image '{absent}', named by .* pull policy"):
                await provider.create(SandboxSpec(image=absent))

    asyncio.run(main())


AS_BUILDKIT = """RUN useradd app
VOLUME /data
RUN mkdir /data && echo kept > /data/it
ENV SAID=before
ARG SAID=last
RUN echo $SAID > /said
USER app
WORKDIR /work/place
RUN touch mine
FROM scratch AS unneeded
COPY absent /
FROM first
RUN echo $SAID >> /data/it 2>/dev/null || cat /data/it > again
"""


def test_a_plain_dockerfile_is_read_as_buildkit_reads_it(with_provider, recipe, image):
    made = recipe(AS_BUILDKIT, base=f"{image} AS first")

    async def check(provider):
        box = await provider.create(SandboxSpec(recipe=made, user="", workdir=""))
        said = await box.exec("pwd; stat -c %U . mine; cat /said again")
        assert said.stdout.split() == ["/work/place", "app", "app", "last", "kept"], said

    with_provider(check)


SLEEPS = "for each in $(seq 4000); do sleep 1001 & done; wait"
HOARDS = "exec python3 -c 'x = str(1) * (1 << 30); import time; time.sleep(1001)'"


@pytest.mark.parametrize(
    ("greedy", "lacks"), [(SLEEPS, "more processes"), (HOARDS, "of memory left")]
)
def test_a_build_that_leaves_the_host_too_little_is_ended(
    with_provider, recipe, monkeypatch, greedy, lacks
):
    word = uuid.uuid4().hex
    made = recipe(f"RUN echo begun; : {word}; {greedy}\n", timeout_sec=300)
    # The host seems to have so little that a build takes too much of it long before it hurts.
    taken, memory = build_module._limit() - build_module._processes(), build_module._memory
    other = memory()["MemAvailable"] - (512 << 10)
    if greedy == SLEEPS:
        monkeypatch.setattr(build_module, "_limit", lambda: taken + 4000)
    else:

        def left():
            free = memory()
            return {**free, "MemAvailable": free["MemAvailable"] - other}

        monkeypatch.setattr(build_module, "_memory", left)

    async def check(provider):
        with pytest.raises(SandboxError, match=f"build was ended: .* {lacks}") as caught:
            await provider.create(SandboxSpec(recipe=made))
        assert caught.value.where == "Dockerfile:3"
        assert "begun" in str(caught.value)
        await until(lambda: not any(word.encode() in each for each in commands()))

    with_provider(check)


def test_a_build_is_ended_when_the_host_does_not_tell_what_it_has_left(
    with_provider, recipe, monkeypatch
):
    word, memory = uuid.uuid4().hex, build_module._memory
    made = recipe(f"RUN : {word}; sleep 1001\n", timeout_sec=300)

    def runs():
        return any(word.encode() in each for each in commands())

    def left():
        if runs():
            raise OSError(24, "Too many open files")
        return memory()

    monkeypatch.setattr(build_module, "_memory", left)

    async def check(provider):
        with pytest.raises(SandboxError, match=r"was ended: .* be read: Too many open"):
            await provider.create(SandboxSpec(recipe=made))
        async with asyncio.timeout(30):
            while runs():  # noqa: ASYNC110 - the engine tells of nothing
                await asyncio.sleep(0.05)

    with_provider(check)
