"""Checks of `SupportsFileObservation`: which files the host sees opened."""

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
    async with subject.box() as box:
        made = "echo 1 > a; echo 1 > b; echo 1 > c; echo 1 > d"
        await subject.output(box, f"{made}; ln -s b link; cat a")
        async with _observing(subject, box) as seen:
            await subject.output(box, "cat link; cat c c; (cat c)")
        await subject.output(box, "cat d")
        expect_equal(seen.lost, None, "what was lost")
        names = [subject.inside(each) for each in "bcc"]
        expect_equal(sorted(each.path for each in seen.opened), names, "what was opened")


@promise()
async def an_opened_file_has_its_name_at_that_time(subject: SandboxSubject) -> None:
    """A process cannot hide an opened file by moving it."""
    async with subject.box() as box:
        await subject.output(box, "echo 1 > a; echo 1 > b")
        async with _observing(subject, box) as seen:
            await subject.output(box, "exec 3< a; mv a moved; exec 4< b; rm b")
        paths = {each.path for each in seen.opened}
        expect_equal(paths, {subject.inside("a"), subject.inside("b")}, "what was opened")


@promise()
async def an_executed_file_differs_from_a_read_file(subject: SandboxSubject) -> None:
    """An executed program is distinguished from a read file, and its process from its parent."""
    async with subject.box() as box:
        program = subject.inside("program")
        script = (
            "printf '#!/bin/sh\\ncat %s/data; :' $PWD > program; chmod +x program; echo 1 > data"
        )
        await subject.output(box, script)
        async with _observing(subject, box) as seen:
            await subject.output(box, "./program; :")
        executed = {each.path for each in seen.opened if each.executed}
        expect_equal(executed, {program}, "what was executed")
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
async def _observing(subject: SandboxSubject, box: Sandbox) -> AsyncGenerator[ObservedFiles, None]:
    if not isinstance(box, SupportsFileObservation):
        raise CheckSkippedError("the sandbox does not observe the files that are opened")
    below = f"{subject.spec.workdir}/"
    observing = box.observe_files(lambda path: path.startswith(below))
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
