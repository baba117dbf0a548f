"""The processes that open files in a sandbox: their parents and arguments."""

import os
from dataclasses import dataclass
from pathlib import Path

from .comparison import as_text

_MAX_PROCESSES = 50_000
_MAX_COMMAND = 1024
_MAX_DEPTH = 64


@dataclass(slots=True)
class _Program:
    """One program that a process runs."""

    pid: int
    parent: int | None
    command: tuple[str, ...] = ()
    has_command: bool = True
    """Whether its arguments are known: not before its first open of another file."""
    executed: str = ""


class ObservedProcesses:
    """A table with a row for each program of each process, in the order of appearance."""

    def __init__(self) -> None:
        self.all: list[_Program] = []
        self._current: dict[int, int] = {}
        self._outside: set[int] = set()

    @property
    def full(self) -> bool:
        """Whether there were more processes than the table can hold."""
        return len(self.all) >= _MAX_PROCESSES

    def of(self, pid: int, path: str, *, executes: bool) -> int | None:
        """Return the row of a process that opens `path`; `None` for a process of the host.

        The process waits for its open, so it still exists unless it was killed.
        """
        if pid in self._outside:
            return None
        row = self._current.get(pid)
        if row is None:
            row = self._add_process(pid)
            if row is None:
                return None
        if executes:
            return self._execute(pid, row, path)
        program = self.all[row]
        if not program.has_command and path != program.executed:
            program.has_command, program.command = True, _command(pid)
        return row

    def _add_process(self, pid: int, depth: int = 0) -> int | None:
        inside, parent = _numbers(pid)
        if inside is None:
            self._outside.add(pid)
            return None
        above = self._current.get(parent)
        # A shell between two processes may open nothing itself.
        if above is None and inside > 1 and parent and depth < _MAX_DEPTH:
            above = self._add_process(parent, depth + 1)
        return self._add(pid, _Program(inside, above, _command(pid)))

    def _execute(self, pid: int, row: int, path: str) -> int:
        program = self.all[row]
        if not program.has_command:  # the interpreter or the loader of the program
            program.executed = path
            return row
        later = _Program(program.pid, row, program.command, has_command=False, executed=path)
        return self._add(pid, later)

    def _add(self, pid: int, program: _Program) -> int:
        if not self.full:
            self._current[pid] = len(self.all)
            self.all.append(program)
        return self._current.get(pid, len(self.all) - 1)


def _numbers(pid: int) -> tuple[int | None, int]:
    """Return the pid inside, `None` for a process of the host, and the parent's pid outside."""
    try:
        text = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    except OSError:
        return 0, 0  # killed meanwhile
    fields = (line.partition(":") for line in text.splitlines())
    values = {key: value.split() for key, _, value in fields}
    numbers = values.get("NSpid", [])
    return (int(numbers[-1]) if len(numbers) > 1 else None), int(values["PPid"][0])


def _command(pid: int) -> tuple[str, ...]:
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            data = file.read(_MAX_COMMAND)
    except OSError:
        return ()
    return tuple(as_text(os.fsdecode(argument)) for argument in data.split(b"\0")[:-1])
