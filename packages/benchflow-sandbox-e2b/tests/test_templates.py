"""E2B's SDK against our server: templates from images, Dockerfiles and bundles."""

import asyncio
import os
import sys
from datetime import timedelta

import pytest
from benchflow_contracts.bundle import Bundle
from benchflow_contracts.errors import (
    SandboxError,
    SandboxTimeoutError,
    SandboxUnsupportedError,
)
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy

OWN = {"user": "", "workdir": ""}


@pytest.fixture
def recipe_of(tmp_path):
    """Write a context with a Dockerfile and the file `greeting`; return its recipe."""

    def write(*lines, **options):
        context = tmp_path / "context"
        context.mkdir(exist_ok=True)
        (context / "greeting").write_text("good day\n")
        (context / "Dockerfile").write_text("\n".join(["FROM debian:12", *lines, ""]))
        return ImageRecipe(context=context, **options)

    return write


@pytest.fixture
def bundle(tmp_path):
    agent = tmp_path / "agent"
    (agent / "bin").mkdir(parents=True)
    (agent / "bin/agent").write_text("#!/bin/sh\necho agent\n")
    (agent / "bin/agent").chmod(0o755)
    (agent / "bin/link").symlink_to("agent")
    return Bundle.of(agent, agent.__class__("/opt/agent"))


def test_a_dockerfile_gives_its_files_variables_user_and_workdir(with_provider, recipe_of):
    recipe = recipe_of(
        "ARG WHO=nobody",
        "ENV GREETING=hello PATH=/opt/bin:$PATH",
        "ENV LONGER=$GREETING-$WHO",
        "RUN useradd -u 4321 worker",
        "WORKDIR /srv",
        "WORKDIR app",
        "COPY greeting ./",
        "USER worker",
        "RUN id -un > /tmp/who",
        "COPY greeting /srv/again",
        'ENTRYPOINT ["/bin/false"]',
        args=(("WHO", "you"),),
    )

    async def test(provider, server):
        sandbox = await provider.create(SandboxSpec(recipe=recipe, **OWN))
        assert (sandbox.spec.user, sandbox.spec.workdir) == ("worker", "/srv/app")
        said = await sandbox.exec(
            'cat greeting /tmp/who; echo "$GREETING $LONGER ${WHO-none}"; id -u;'
            ' echo "$PATH"; stat -c %U /srv/again greeting'
        )
        lines = said.stdout.splitlines()
        assert lines[:4] == ["good day", "worker", "hello hello-you none", "4321"]
        assert lines[4].startswith("/opt/bin:/")
        assert lines[5:] == ["root", "root"]
        assert [each.status for each in server.templates.builds] == ["ready"]

    with_provider(test)


def test_an_image_of_a_registry_is_built_once_and_has_its_variables(with_provider):
    async def test(provider, server):
        spec = SandboxSpec(image="debian:12")
        for _ in range(2):
            sandbox = await provider.create(spec)
            assert (await sandbox.exec("echo $FROM_IMAGE")).stdout == "yes\n"
        assert len(server.templates.builds) == 1
        child = await provider.create(spec, image=await sandbox.snapshot())
        assert (await child.exec("echo $FROM_IMAGE")).stdout == "yes\n"

    with_provider(test)


def test_a_bundle_is_baked_once_and_the_next_sandbox_gets_no_upload(with_provider, bundle):
    async def test(provider, server):
        spec = SandboxSpec(image="debian:12", bundles=(bundle,))
        for _ in range(2):
            sandbox = await provider.create(spec)
            assert (await sandbox.exec("/opt/agent/bin/link")).stdout == "agent\n"
            assert (await sandbox.exec("touch /opt/agent/bin/agent")).exit_code != 0
        # The bundle and the link, for the build; each sandbox then gets the token of its link only.
        assert len(server.templates.uploads) == 2
        assert server.written == ["/.benchflow/token"] * 2

    with_provider(test)


def test_a_bundle_on_a_template_of_the_account(with_provider, bundle):
    async def test(provider, server):
        for image in (None, "template://base"):
            sandbox = await provider.create(SandboxSpec(image=image, bundles=(bundle,)))
            assert (await sandbox.exec("/opt/agent/bin/agent")).stdout == "agent\n"
        assert len(server.templates.builds) == 1

    with_provider(test)


def test_another_file_of_the_context_gives_another_template(with_provider, recipe_of):
    async def test(provider, server):
        for text in ("one", "two", "one"):
            recipe = recipe_of("WORKDIR /srv", "COPY greeting .")
            (recipe.context / "greeting").write_text(text)
            sandbox = await provider.create(SandboxSpec(recipe=recipe, **OWN))
            assert (await sandbox.exec("cat greeting")).stdout == text
        assert len(server.templates.builds) == 2

    with_provider(test)


def test_a_lost_answer_to_the_request_of_a_build_leaves_one_template(with_provider):
    async def test(provider, server):
        server.templates.failures = [(500, True), (500, False)]
        await provider.create(SandboxSpec(image="debian:12"))
        assert [each.status for each in server.templates.builds] == ["error", "ready"]
        assert len({each.template for each in server.templates.builds}) == 1
        assert server.creations == 1

    with_provider(test)


def test_a_build_that_fails_shows_the_end_of_its_log_and_leaves_no_lock(with_provider, recipe_of):
    async def test(provider, server):
        recipe = recipe_of("RUN echo the cause of it >&2; exit 7")
        for _ in range(2):
            with pytest.raises(SandboxError) as error:
                await provider.create(SandboxSpec(recipe=recipe))
            assert type(error.value) is SandboxError
            assert "\nthe cause of it\n" in str(error.value)
            assert "Dockerfile" in error.value.hint
        assert [each.status for each in server.templates.builds] == ["error"] * 2
        # The same name, so a later build waits for the same lock.
        assert len({each.template for each in server.templates.builds}) == 1
        assert server.creations == 0

    with_provider(test)


def test_a_build_over_its_time_limit_is_a_typed_error(with_provider, recipe_of):
    async def test(provider, server):
        recipe = recipe_of("RUN sleep 600", timeout_sec=3)
        with pytest.raises(SandboxTimeoutError, match="in 3 s"):
            await provider.create(SandboxSpec(recipe=recipe))
        assert server.creations == 0

    with_provider(test)


def test_an_image_that_the_cloud_cannot_pull_is_an_error(with_provider):
    async def test(provider, server):
        with pytest.raises(SandboxError, match="no-such-image"):
            await provider.create(SandboxSpec(image="no-such-image"))
        assert server.creations == 0

    with_provider(test)


def test_a_template_that_was_deleted_is_built_again(with_provider):
    async def test(provider, server):
        spec = SandboxSpec(image="debian:12")
        await provider.create(spec)
        server.templates.builds[0].status = "error"
        with pytest.raises(SandboxUnsupportedError, match="template"):
            await provider.create(spec)
        await provider.create(spec)
        assert [each.status for each in server.templates.builds] == ["error", "ready"]

    with_provider(test)


def test_templates_that_no_sandbox_used_for_a_day_are_listed_and_deleted(with_provider):
    async def test(provider, server):
        await provider.create(SandboxSpec(image="debian:12"))
        (build,) = server.templates.builds
        policy = ReapPolicy(built_images=True)
        assert await provider.reap(policy) == []
        build.used -= timedelta(days=2)
        listed = await provider.reap(policy.model_copy(update={"dry_run": True}))
        assert [each.id[:10] for each in listed] == ["benchflow-"]
        assert await provider.reap(ReapPolicy()) == []
        assert await provider.reap(policy) == listed
        assert await provider.reap(policy) == []

    with_provider(test)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("FROM debian:12", "second stage"),
        ("COPY --from=other /x /y", "options"),
        ("COPY --parents a/b /y", "options"),
        ("RUN --mount=type=secret,id=x true", "options"),
        ('SHELL ["/bin/ash", "-c"]', "SHELL"),
        ("ADD site.tar.gz /srv", "archive"),
        ("ADD https://example.org/x /srv/", "remote URL"),
        ("USER 4321\nRUN true", "4321"),
        ("COPY missing /srv", "No files found"),
    ],
)
def test_a_step_that_would_have_another_meaning_is_refused(with_provider, recipe_of, line, problem):
    async def test(provider, server):
        with pytest.raises(SandboxError, match=problem) as error:
            await provider.create(SandboxSpec(recipe=recipe_of(line)))
        assert error.value.hint
        assert not error.value.retryable
        assert not [each for each in server.templates.builds if each.status != "waiting"]

    with_provider(test)


def test_a_link_of_the_context_does_not_read_files_of_the_host(with_provider, recipe_of, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("of the host")

    async def test(provider, server):
        recipe = recipe_of("COPY inner/key /srv/")
        (recipe.context / "deep").mkdir()
        (recipe.context / "self").symlink_to(".")
        # By its text alone, the link stays inside.
        (recipe.context / "inner").symlink_to("self/self/../../secret")
        with pytest.raises(SandboxUnsupportedError, match="leads out"):
            await provider.create(SandboxSpec(recipe=recipe))
        assert server.templates.uploads == []

    with_provider(test)


def test_a_bundle_that_is_missing_is_an_error(with_provider, tmp_path):
    async def test(provider, server):
        gone = Bundle(source=str(tmp_path / "gone"), target="/opt/x", key="missing")
        with pytest.raises(SandboxError, match="gone"):
            await provider.create(SandboxSpec(bundles=(gone,)))
        assert server.templates.builds == []

    with_provider(test)


def test_a_caller_that_goes_away_in_a_build_leaves_no_lock(with_provider):
    async def test(provider, server):
        server.templates.may_build.clear()
        async with asyncio.TaskGroup() as group:
            creating = group.create_task(provider.create(SandboxSpec(image="debian:12")))
            await server.templates.building.wait()
            creating.cancel()
        assert creating.cancelled()
        server.templates.may_build.set()
        sandbox = await provider.create(SandboxSpec(image="debian:12"))
        assert (await sandbox.exec("true")).ok
        assert server.creations == 1

    with_provider(test)


def test_an_image_with_too_many_variables_is_refused_and_leaves_no_sandbox(with_provider):
    async def test(provider, server):
        with pytest.raises(SandboxError, match="131072 bytes"):
            await provider.create(SandboxSpec(image="hostile"))
        assert (server.creations, server.made) == (1, {})

    with_provider(test)


PROGRAM = """
import asyncio, sys
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_e2b import E2bProvider
from benchflow_sandbox_remote import CloudTerms

async def main():
    terms = CloudTerms(date="2026-11-29", source="a test")
    options = {"api_key": "e2b_test", "api_url": sys.argv[1], "sandbox_url": sys.argv[1]}
    async with E2bProvider(**options, terms=terms) as provider:
        sys.stdin.readline()
        sandbox = await provider.create(SandboxSpec(image="debian:12"))
        print((await sandbox.exec("echo $FROM_IMAGE")).stdout, end="")

asyncio.run(main())
"""


def test_two_processes_at_once_make_one_build(with_provider):
    async def test(provider, server):
        del provider
        pipe = asyncio.subprocess.PIPE
        argv = (sys.executable, "-c", PROGRAM, server.templates.url)
        runners = [
            await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe) for _ in range(2)
        ]
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(each.communicate(b"\n")) for each in runners]
        assert [each.result()[0] for each in ends] == [b"yes\n"] * 2
        assert [each.status for each in server.templates.builds] == ["ready"]

    with_provider(test)


def test_a_runner_killed_in_a_build_leaves_no_lock_and_one_template(with_provider, tmp_path):
    async def test(provider, server):
        server.templates.may_build.clear()
        pipe = asyncio.subprocess.PIPE
        argv = (sys.executable, "-c", PROGRAM, server.templates.url)
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        runner = await asyncio.create_subprocess_exec(*argv, stdin=pipe, env=environment)
        runner.stdin.write(b"\n")
        await server.templates.building.wait()
        runner.kill()
        await runner.wait()
        server.templates.building.clear()
        async with asyncio.TaskGroup() as group:
            creating = group.create_task(provider.create(SandboxSpec(image="debian:12")))
            # The cloud does not know that the first runner is gone, and ends its build, too.
            await server.templates.building.wait()
            server.templates.may_build.set()
        assert (await creating.result().exec("echo $FROM_IMAGE")).stdout == "yes\n"
        assert [each.status for each in server.templates.builds] == ["ready"] * 2
        assert len({each.template for each in server.templates.builds}) == 1
        assert server.creations == 1

    with_provider(test)
