"""The inside of a fake sandbox: its files and its processes."""

from copy import deepcopy
from dataclasses import dataclass, field

from .file_system import FakeFileSystem
from .process import FakeGate, FakeGroup, FakeProcess


@dataclass(slots=True, eq=False)
class FakeMachine:
    """The state that a live snapshot copies, as one object for one deep copy.

    A process of the copy uses the files, pipes and group of the copy, not of the original.
    """

    files: FakeFileSystem
    gate: FakeGate = field(default_factory=FakeGate)
    groups: list[FakeGroup] = field(default_factory=list[FakeGroup])
    processes: dict[str, FakeProcess] = field(default_factory=dict[str, FakeProcess])
    """The processes with live pipes whose group still runs, by id."""

    def copy(self) -> "FakeMachine":
        """Return an independent copy in which nothing runs yet.

        Raises:
            SnapshotError: A process cannot be copied.
        """
        self.prune()
        return deepcopy(self)

    def resume(self) -> None:
        """Continue every process from its state."""
        for group in self.groups:
            group.resume()

    def group(self, pid: int) -> FakeGroup:
        """Return a new process group."""
        self.prune()
        group = FakeGroup(pid)
        self.groups.append(group)
        return group

    def process(self, pid: int) -> FakeProcess:
        """Return a new process with live pipes, not yet started."""
        process = FakeProcess(self.group(pid))
        self.processes[process.id] = process
        return process

    def prune(self) -> None:
        """Remove ended groups, and new groups without members."""
        self.groups = [group for group in self.groups if group.alive]
        self.processes = {k: p for k, p in self.processes.items() if p.group.alive}

    @property
    def is_busy(self) -> bool:
        """Whether a process still runs."""
        self.prune()
        return bool(self.groups)

    async def halt(self) -> None:
        """End every process."""
        groups, self.groups = self.groups, []
        self.processes = {}
        for group in groups:
            await group.kill()
