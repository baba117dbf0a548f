"""Checks of `SupportsFileObservation`: the opened files that the provider reports."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchflow_contracts.errors import SandboxUnsupportedError
from benchflow_contracts.observed import ObservedFiles, SupportsFileObservation
from benchflow_contracts.sandbox import Sandbox

from benchflow_testing.check import (
    CheckSkippedError,
    expect,
    expect_equal,
    promise,
)
from benchflow_testing.sandbox_subject import SandboxCheck, SandboxSubject


@promise()
async def each_file_that_is_opened_is_observed(subject: SandboxSubject) -> None:
    """A file is observed under its own name, also through a link, once for each process.

    Files that are opened before or after the observation are not in the result.
    """
    async with subject.open_sandbox() as sandbox:
        made = "echo 1 > a; echo 1 > b; echo 1 > c; echo 1 > d"
        await subject.output(sandbox, f"{made}; ln -s b link; cat a")
        async with _observing(subject, sandbox) as seen:
            await subject.output(sandbox, "cat link; cat c c; (cat c)")
        await subject.output(sandbox, "cat d")
        expect_equal(seen.lost, None, "the lost observations")
        names = [subject.inside(each) for each in "bcc"]
        expect_equal(sorted(each.path for each in seen.opened), names, "the opened files")


@promise()
async def an_opened_file_has_its_name_at_that_time(subject: SandboxSubject) -> None:
    """A process cannot hide an opened file by moving it."""
    async with subject.open_sandbox() as sandbox:
        await subject.output(sandbox, "echo 1 > a; echo 1 > b")
        async with _observing(subject, sandbox) as seen:
            await subject.output(sandbox, "exec 3< a; mv a moved; exec 4< b; rm b")
        paths = {each.path for each in seen.opened}
        expect_equal(paths, {subject.inside("a"), subject.inside("b")}, "the opened files")


@promise()
async def an_executed_file_differs_from_a_read_file(subject: SandboxSubject) -> None:
    """An executed program is distinguished from a read file, and its process from its parent."""
    async with subject.open_sandbox() as sandbox:
        program = subject.inside("program")
        script = (
            "printf '#!/bin/sh\\ncat %s/data; :' $PWD > program; chmod +x program; echo 1 > data"
        )
        await subject.output(sandbox, script)
        async with _observing(subject, sandbox) as seen:
            await subject.output(sandbox, "./program; :")
        executed = {each.path for each in seen.opened if each.executed}
        expect_equal(executed, {program}, "the executed files")
        [runs] = {each.process for each in seen.opened if each.path == program}
        [reads] = [each.process for each in seen.opened if each.path == subject.inside("data")]
        reader = seen.processes[reads]
        expect("cat" in reader.command[0], f"the reader is {reader.command}")
        above, place = set[int | None](), reader.parent
        while place is not None and place not in above:
            above.add(place)
            place = seen.processes[place].parent
        expect(runs in above, f"the reader was not started by the program: {seen.processes}")


@asynccontextmanager
async def _observing(
    subject: SandboxSubject, sandbox: Sandbox
) -> AsyncGenerator[ObservedFiles, None]:
    if not isinstance(sandbox, SupportsFileObservation):
        raise CheckSkippedError("the sandbox does not observe the files that are opened")
    below = f"{subject.spec.workdir}/"
    observing = sandbox.observe_files(lambda path: path.startswith(below))
    try:
        observed = await observing.__aenter__()
    except SandboxUnsupportedError as error:
        raise CheckSkippedError(f"files cannot be observed here: {error}") from error
    try:
        yield observed
    finally:
        await observing.__aexit__(None, None, None)


OBSERVED_CHECKS: tuple[SandboxCheck, ...] = (
    each_file_that_is_opened_is_observed,
    an_opened_file_has_its_name_at_that_time,
    an_executed_file_differs_from_a_read_file,
)
