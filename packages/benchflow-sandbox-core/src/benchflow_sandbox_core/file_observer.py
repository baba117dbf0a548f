"""Record which files the processes of a sandbox open in one file system."""

import os
import select
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.observed import ObservedFiles, ObservedProcess, OpenedFile

from .comparison import as_text
from .fanotify import FanotifyGroup, OpenEvent
from .observed_processes import ObservedProcesses
from .shield import finish
from .thread import run

_MAX_OPENED = 100_000
_MAX_IGNORED = 20_000
"""Each ignored file uses a little kernel memory. Beyond this number files cost only time."""
_JOIN_SEC = 10.0
_DELETED = " (deleted)"


class _Reader:
    """Responds to the kernel in a thread of its own, so that processes inside wait only briefly."""

    def __init__(self, group: FanotifyGroup, wanted: Callable[[str], bool]) -> None:
        self._group = group
        self._wanted = wanted
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._processes = ObservedProcesses()
        self._opened: dict[tuple[str, int], bool] = {}
        self._ignored = 0
        self._lost: str | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="bf-observer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:  # noqa: BLE001 - raised by `end`
            self._failure = error
        finally:
            self._group.close()

    def _read(self) -> None:
        poller = select.poll()
        poller.register(self._group.fd, select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._group.fd in ready:
                for event in self._group.events():
                    self._record(event)
            elif self._stop in ready:
                return

    def _record(self, event: OpenEvent) -> None:
        if event.pid == os.getpid():
            return
        path = _path_of(event.fd)
        process = self._processes.of(event.pid, path, executes=event.executed)
        if process is None:
            return
        if event.pid == 0 or self._processes.full:
            self._lost = "a process is not visible to this host, or there were too many"
        # The kernel appends the mark to the name of a removed file. A real name may have it too.
        names = (as_text(path), as_text(path.removesuffix(_DELETED)))
        text = next((name for name in names if self._wanted(name)), None)
        if text is None:
            if self._ignored < _MAX_IGNORED:
                self._group.ignore(event)
                self._ignored += 1
            return
        key = (text, process)
        if key not in self._opened and len(self._opened) >= _MAX_OPENED:
            self._lost = f"more than {_MAX_OPENED} files were opened"
            return
        self._opened[key] = self._opened.get(key, False) or event.executed

    def end(self) -> None:
        """Stop the thread and wait for its end.

        Raises:
            SandboxError: The kernel got no response for an open, so that the open failed.
        """
        os.eventfd_write(self._stop, 1)
        self._thread.join(_JOIN_SEC)
        if self._thread.is_alive():
            raise SandboxError("the observer of a sandbox's files does not end", retryable=True)
        os.close(self._stop)
        if self._failure is not None:
            raise SandboxError(
                f"the files that a sandbox opens could not be observed: {self._failure}",
                retryable=True,
            ) from self._failure

    def fill(self, observed: ObservedFiles) -> None:
        """Write the record into `observed`. Call this after `end`."""
        observed.processes = [
            ObservedProcess(program.pid, program.parent, program.command)
            for program in self._processes.all
        ]
        observed.opened = [OpenedFile(p, i, executed) for (p, i), executed in self._opened.items()]
        observed.lost = self._lost


def _path_of(fd: int) -> str:
    """Return the path of an open file in the mounts of its process, as the kernel shows it."""
    return str(Path(f"/proc/self/fd/{fd}").readlink())


@asynccontextmanager
async def observe_files(
    directory: int, wanted: Callable[[str], bool]
) -> AsyncGenerator[ObservedFiles]:
    """Observe the file system that `directory` is in while the block runs.

    See `benchflow_contracts.observed.SupportsFileObservation`. `directory` is open, and the
    caller closes it. If the process table or the record is full, `observed.lost` says so.
    """
    reader = _Reader(FanotifyGroup(directory), wanted)
    observed = ObservedFiles(lost="the observation has not ended")
    try:
        yield observed
    finally:
        await finish(run(lambda _: reader.end()))
    reader.fill(observed)
