"""Restart the entrypoint in a twin, and copy the host names from the agent's sandbox."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchflow_contracts import (
    FileChanges,
    ObservedFiles,
    ObservedProcess,
    OpenedFile,
    RewardError,
    Sandbox,
    SandboxError,
    SupportsEntrypoint,
    caused_outside,
)

from .file_observation import ObservedRun, observe_changed_files
from .grading_protocol import LiveNode
from .integrity import changes_by_path
from .layout import TESTS
from .live_state import HOST_FILES, LiveState, changed_host_files, read_live_state
from .opened_files import is_code
from .tamper_rules import Change

_WRITE = 'cat > "$1"'
_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"})
_CONFIGURATION = ("/etc/", "/usr/", "/opt/", "/var/spool/")
_READ_BY_ALL = frozenset(
    {*HOST_FILES, "/etc/group", "/etc/ld.so.cache", "/etc/passwd", "/etc/shadow"}
)
"""Other rules grade these files."""


@dataclass(slots=True)
class RestartReport:
    """The result of a restart in a twin."""

    findings: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    notes: list[str] = field(default_factory=list[str])
    """For the verdict's `meta`."""
    was_started: bool = False
    """Whether the entrypoint runs in the twin again, beside the tests."""

    def add_beside(self, watch: ObservedRun) -> None:
        """Note the agent's files that the entrypoint ran during the tests."""
        if self.was_started and watch.observed is not None:
            self.findings += _run_by(watch, watch.observed, processes_beside_tests(watch.observed))

    def added_to(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """Return the integrity report with the `suspicious` findings of the restart."""
        known = {each["path"] for each in report["findings"]}
        new = [each for each in self.findings if each["path"] not in known]
        if not new:
            return dict(report)
        grade = "suspicious" if report["grade"] == "clean" else report["grade"]
        found = [*report["findings"], *new]
        return {**report, "grade": grade, "findings": found, "count": report["count"] + len(new)}


async def restart_entrypoint(
    live: LiveNode, sandbox: Sandbox, state: LiveState, changes: FileChanges | None
) -> RestartReport:
    """Start the image's entrypoint again where the agent's sandbox needs it; copy the names.

    The entrypoint is started only when something runs in the agent's sandbox, or the names are not
    those of a new sandbox: what it wrote into files is in the twin already.

    Raises:
        SandboxError: The twin failed, or the host.
    """
    brought, spec = RestartReport(), live.sandbox.spec
    same = (spec.network == "public") == (sandbox.spec.network == "public")
    names = changed_host_files(state, await read_live_state(sandbox), same_network=same)
    if spec.entrypoint == "image" and (state.is_lost_in_a_copy or names):
        await _start_again(sandbox, changes, brought)
        # Where a copy of the files has the names, the entrypoint may have added its own twice.
        if names:
            names = changed_host_files(state, await read_live_state(sandbox), same_network=same)
    for path, text in names.items():
        cmd = ["/bin/sh", "-c", _WRITE, "sh", path]
        done = await sandbox.exec(cmd, user="root", cwd="/", timeout=60, stdin=text.encode())
        if not done.ok:
            raise RewardError(
                f"{path} cannot be written in a twin: {done.stderr[-300:]}", caused_by="inside"
            )
    known = dict[str, Change]() if changes is None else changes_by_path(changes)
    for path in sorted({*names, *(known.keys() & set(HOST_FILES[:2]))}):
        brought.findings.append(_finding(path, known.get(path, "changed")))
    return brought


async def _start_again(
    sandbox: Sandbox, changes: FileChanges | None, brought: RestartReport
) -> None:
    """Start the entrypoint, and note which of the agent's files it runs."""
    if not isinstance(sandbox, SupportsEntrypoint):
        brought.notes.append("this sandbox cannot start the entrypoint again")
        return
    async with observe_changed_files(sandbox, changes) as watch:
        try:
            was_started = await sandbox.start_image_entrypoint()
        except SandboxError as error:
            if error.retryable or caused_outside(error):
                raise
            brought.notes.append(f"the entrypoint cannot be started again: {error}"[:300])
        else:
            if not was_started:
                return
            brought.was_started = True
            brought.notes.append("the entrypoint was started again")
    if watch.observed is None:
        brought.findings.append(_finding("the entrypoint", "changed", note=watch.why_not))
        return
    everything = range(len(watch.observed.processes))
    brought.findings += _run_by(watch, watch.observed, everything)


def processes_beside_tests(observed: ObservedFiles) -> frozenset[int]:
    """Return the processes that the tests did not start."""
    lines = [_line(observed.processes, index) for index in range(len(observed.processes))]
    tests = {
        root for each in observed.opened if _is_test(each) for root in lines[each.process][-2:]
    }
    tests -= {root for root in tests if observed.processes[root].pid == 1}
    return frozenset(index for index, line in enumerate(lines) if tests.isdisjoint(line))


def _line(processes: Sequence[ObservedProcess], index: int) -> list[int]:
    """Return a process and those above it, the sandbox's first one last."""
    line: list[int] = []
    above: int | None = index
    while above is not None:
        line.append(above)
        above = processes[above].parent
    return line


def _is_test(file: OpenedFile) -> bool:
    return file.executed and file.path.startswith(f"{TESTS}/")


def _run_by(
    watch: ObservedRun, observed: ObservedFiles, processes: Collection[int]
) -> list[dict[str, Any]]:
    """Return findings on the agent's files that some processes run or are configured by."""
    found: dict[str, dict[str, Any]] = {}
    for each in observed.opened:
        process = observed.processes[each.process]
        if each.process in processes and each.path in watch.known and _steers(each, process):
            command = " ".join(process.command)[:200]
            change = watch.known[each.path]
            found[each.path] = _finding(each.path, change, process=command, pid=process.pid)
    return list(found.values())


def _steers(file: OpenedFile, process: ObservedProcess) -> bool:
    """Whether a file is code, a shell reads it, or it is where a system has its configuration."""
    program = process.command[0].rpartition("/")[2] if process.command else ""
    # Bytecode was made anew from the sources, which the report is about.
    is_bytecode = "/__pycache__/" in file.path and file.path.endswith(".pyc")
    if is_bytecode or file.path in _READ_BY_ALL:
        return False
    return is_code(file) or program in _SHELLS or file.path.startswith(_CONFIGURATION)


def _finding(path: str, change: str, **more: object) -> dict[str, Any]:
    return {"path": path, "change": change, "grade": "suspicious", **more}


def missing_reasons(state: LiveState, notes: Sequence[str]) -> list[str]:
    """Return the reasons why a twin may lack a process or file that the tests need."""
    return [*state.reasons, *(note for note in notes if "cannot" in note)]
