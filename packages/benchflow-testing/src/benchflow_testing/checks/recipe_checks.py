"""Checks of images: builds from a recipe, entrypoints and health checks."""

from pathlib import Path
from uuid import uuid4

from benchflow_contracts import RolloutIdentity
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError, UsageError
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.sandbox import Sandbox, SandboxSpec, SupportsEntrypoint

from benchflow_testing.check import CheckSkippedError, expect_equal, expect_error, promise
from benchflow_testing.sandbox_subject import (
    SandboxCheck,
    SandboxSubject,
    lacks_builds,
    lacks_snapshots,
    until,
)

_USER, _HOME = "4321", "/srv/kit"
_DOCKERFILE = f"""FROM {{base}}
ENV GREETING=hello
WORKDIR {_HOME}
COPY greeting entry ./
RUN cat /proc/sys/kernel/random/uuid > id && chmod 755 entry && chmod 777 .
USER {_USER}
ENTRYPOINT ["{_HOME}/entry"]
"""
_WORK = 'echo "$GREETING $(id -u) $(pwd) $*" > said.new\nmv said.new said\nexec "$@"\n'
_ENTRY = f"#!/bin/sh\n{_WORK}"
_OWN = {"image": None, "user": "", "workdir": ""}


def _has_builds(subject: SandboxSubject) -> str | None:
    return "capabilities: there are builds" if subject.capabilities.builds else None


def _context(subject: SandboxSubject, *, greeting: str, entry: str = _ENTRY) -> Path:
    context = subject.folder()
    files = {"Dockerfile": _DOCKERFILE.format(base=subject.base), "entry": entry}
    for name, text in {**files, "greeting": greeting}.items():
        (context / name).write_text(text, encoding="utf-8")
    return context


def _spec(subject: SandboxSubject, context: Path, **more: object) -> SandboxSpec:
    return subject.spec_with(**_OWN, **more, recipe=ImageRecipe(context=context))


@promise(lacks_builds)
async def a_recipe_builds_the_image_of_its_dockerfile(subject: SandboxSubject) -> None:
    """The sandbox has the files, variables, user and working directory of the Dockerfile."""
    async with subject.open_sandbox(
        spec=_spec(subject, _context(subject, greeting="good day"))
    ) as sandbox:
        found = (sandbox.spec.user, sandbox.spec.workdir)
        expect_equal(found, (_USER, _HOME), "the image's user and workdir")
        said = await subject.output(sandbox, 'cat greeting; echo ", $GREETING"; pwd; id -u')
        expect_equal(said, f"good day, hello\n{_HOME}\n{_USER}\n", "what the image gives")


@promise(lacks_builds)
async def the_same_bytes_are_built_once(subject: SandboxSubject) -> None:
    """A directory with equal files gives the same image. Other files give another image."""

    async def identity(greeting: str) -> str:
        async with subject.open_sandbox(
            spec=_spec(subject, _context(subject, greeting=greeting))
        ) as sandbox:
            return await subject.output(sandbox, "cat id greeting")

    own = uuid4().hex
    first, again, other = [await identity(each) for each in (own, own, f"{own} ")]
    expect_equal(again, first, "the image of the same bytes")
    changed = (other.split()[0] == first.split()[0], other.endswith(f"{own} "))
    expect_equal(changed, (False, True), "whether other bytes give the same image, or their own")


@promise(lacks_builds)
async def a_build_that_fails_is_an_error(subject: SandboxSubject) -> None:
    """If a step of the build fails, `create` raises an error and leaves no sandbox."""
    context = _context(subject, greeting="")
    (context / "Dockerfile").write_text(f"FROM {subject.base}\nRUN exit 3\n", encoding="utf-8")
    await _starts_nothing(subject, _spec(subject, context), "a failing build")


@promise(lacks_builds)
async def a_recipe_with_an_image_is_refused(subject: SandboxSubject) -> None:
    """A spec with both a recipe and an image is refused."""
    spec = _spec(subject, _context(subject, greeting=""))
    both = spec.model_copy(update={"image": subject.base})
    await expect_error(UsageError, subject.provider.create(both), "an image and a recipe")


@promise(lacks_builds)
async def an_unknown_image_is_an_error(subject: SandboxSubject) -> None:
    """An unknown image raises an error. No other image is used instead."""
    search = (str(subject.folder()),)
    spec = subject.spec_with(image=f"sha256:{uuid4().hex * 2}", image_search=search)
    await _starts_nothing(subject, spec, "an image that is nowhere")


@promise(lacks_builds)
async def the_images_entrypoint_runs_with_the_settings_of_the_image(
    subject: SandboxSubject,
) -> None:
    """The entrypoint runs as the image's user, in its directory, with its variables.

    Its arguments are a command that does nothing.
    """
    context = _context(subject, greeting="")
    async with subject.open_sandbox(spec=_spec(subject, context, entrypoint="image")) as sandbox:
        await _said(sandbox)
        found = await subject.output(sandbox, "cat said")
        wanted = f"hello {_USER} {_HOME} sh -c sleep infinity\n"
        expect_equal(found, wanted, "what the entrypoint was given")


@promise(lacks_builds)
async def a_sandbox_from_a_snapshot_runs_the_images_entrypoint(subject: SandboxSubject) -> None:
    """The entrypoint runs in a child, and in the sandbox after a `restore`."""
    spec = _spec(subject, _context(subject, greeting=""), entrypoint="image")
    if (lacking := lacks_snapshots(subject)) is not None:
        raise CheckSkippedError(lacking)
    async with subject.open_sandbox(spec=spec) as sandbox:
        await _said(sandbox)
        await subject.output(sandbox, "rm said")
        async with subject.sealed(sandbox) as image:
            await sandbox.restore(image)
            await _said(sandbox)
            async with subject.open_sandbox(spec=spec, image=image) as child:
                await _said(child)


@promise(lacks_builds)
async def the_images_entrypoint_runs_only_on_request(subject: SandboxSubject) -> None:
    """Without `entrypoint="image"`, an entrypoint that would fail does not run."""
    context = _context(subject, greeting="", entry="#!/bin/sh\ntouch said\nexit 3\n")
    async with subject.open_sandbox(spec=_spec(subject, context)) as sandbox:
        found = await sandbox.exec("test -e said")
        expect_equal(found.exit_code, 1, "whether the entrypoint ran")


@promise(lacks_builds)
async def an_entrypoint_of_the_image_that_fails_is_an_error(subject: SandboxSubject) -> None:
    """If the entrypoint fails, `create` raises an error and leaves no sandbox."""
    context = _context(subject, greeting="", entry="#!/bin/sh\nexit 3\n")
    spec = _spec(subject, context, entrypoint="image")
    await _starts_nothing(subject, spec, "an entrypoint that ends")


@promise(lacks_builds)
async def create_waits_for_a_slow_entrypoint(
    subject: SandboxSubject,
) -> None:
    """`create` returns only after the entrypoint script has reached its arguments."""
    context = _context(subject, greeting="", entry=f"#!/bin/sh\nsleep 1\n{_WORK}")
    async with subject.open_sandbox(spec=_spec(subject, context, entrypoint="image")) as sandbox:
        await subject.output(sandbox, "cat said")


@promise(lacks_builds)
async def create_waits_for_the_images_healthcheck(
    subject: SandboxSubject,
) -> None:
    """`create` returns only when the image is healthy, also if its processes start slowly."""
    entry = '#!/bin/sh\n(sleep 1; touch ready) &\nexec "$@"\n'
    context = _context(subject, greeting="", entry=entry)
    with (context / "Dockerfile").open("a", encoding="utf-8") as dockerfile:
        dockerfile.write(f"HEALTHCHECK --interval=100ms --retries=600 CMD test -e {_HOME}/ready\n")
    async with subject.open_sandbox(spec=_spec(subject, context, entrypoint="image")) as sandbox:
        await subject.output(sandbox, "test -e ready")


@promise(lacks_builds)
async def the_images_entrypoint_may_be_started_later(subject: SandboxSubject) -> None:
    """If this is supported, `start_image_entrypoint` returns after the entrypoint's work."""
    context = _context(subject, greeting="")
    async with subject.open_sandbox(spec=_spec(subject, context)) as sandbox:
        if not isinstance(sandbox, SupportsEntrypoint):
            raise CheckSkippedError("not claimed: the entrypoint starts only with the sandbox")
        expect_equal(await sandbox.start_image_entrypoint(), True, "whether there is an entrypoint")
        await subject.output(sandbox, "cat said")


@promise(_has_builds)
async def a_recipe_is_refused_if_unsupported(subject: SandboxSubject) -> None:
    """A recipe raises SandboxUnsupportedError; no other image is used instead."""
    context = subject.folder()
    (context / "Dockerfile").write_text("FROM scratch\n", encoding="utf-8")
    call = subject.provider.create(_spec(subject, context))
    await expect_error(SandboxUnsupportedError, call, "a recipe")


async def _said(sandbox: Sandbox) -> None:
    async def there() -> bool:
        return (await sandbox.exec("test -e said")).ok

    await until(there, "the image's entrypoint did not run")


async def _starts_nothing(subject: SandboxSubject, spec: SandboxSpec, what: str) -> None:
    key = uuid4().hex
    await expect_error(
        SandboxError, subject.provider.create(spec, identity=RolloutIdentity(scope=key)), what
    )
    left = [each.id async for each in subject.provider.sandboxes(scope=key)]
    expect_equal(left, list[str](), f"what {what} left")


RECIPE_CHECKS: tuple[SandboxCheck, ...] = (
    a_recipe_builds_the_image_of_its_dockerfile,
    the_same_bytes_are_built_once,
    a_build_that_fails_is_an_error,
    a_recipe_with_an_image_is_refused,
    an_unknown_image_is_an_error,
    the_images_entrypoint_runs_with_the_settings_of_the_image,
    a_sandbox_from_a_snapshot_runs_the_images_entrypoint,
    the_images_entrypoint_runs_only_on_request,
    an_entrypoint_of_the_image_that_fails_is_an_error,
    create_waits_for_a_slow_entrypoint,
    create_waits_for_the_images_healthcheck,
    the_images_entrypoint_may_be_started_later,
    a_recipe_is_refused_if_unsupported,
)
