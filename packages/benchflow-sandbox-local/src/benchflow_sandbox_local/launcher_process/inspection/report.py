"""Finding what the engine would lose of a frozen sandbox, in one walk over its open files."""

import socket
import stat
from dataclasses import dataclass, field
from typing import Any

from benchflow_sandbox_local.launcher_process import wire
from benchflow_sandbox_local.launcher_process.criu.socket_owners import SocketOwners

from . import open_files, sockets
from .message_queues import queues
from .process_files import Finding, OpenFile, files_of, holders
from .unix_sockets import unix_sockets

_MOST = 4
"""Findings that are reported: one is enough for a refusal, and each may name a long path."""


def inspect(request: dict[str, Any], reply: socket.socket) -> None:
    """Report what a child of the frozen sandbox would lose, and which users made its sockets.

    This process ends in the namespaces of the sandbox.
    """
    init = request["pid"]
    with holders(request["pids"]) as held:
        walk = _Walk(SocketOwners(unix_sockets(init)))
        for holder in held:
            for file in files_of(holder):
                walk.look_at(file)
        if walk.reads_late:
            walk.findings += sockets.orphans(init)
        walk.findings += queues(init, held)
        assigned, refused = walk.owners.assigned()
    # Lasting losses come first: waiting for the others would not help.
    findings = sorted([*walk.findings, *refused], key=lambda finding: finding.drains)
    reported = [[finding.what, finding.drains, finding.hint] for finding in findings[:_MOST]]
    makers = [[pid, owner.uid, owner.gid, *owner.groups] for pid, owner in assigned.items()]
    wire.send(reply, {"ok": True, "findings": reported, "makers": makers})


@dataclass(slots=True)
class _Walk:
    owners: SocketOwners
    findings: list[Finding] = field(default_factory=list[Finding])
    reads_late: bool = False
    """Whether a TCP connection has unread data."""
    _seen: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def look_at(self, file: OpenFile) -> None:
        if stat.S_ISSOCK(file.mode):
            finding = self._socket(file)
        elif stat.S_ISFIFO(file.mode) and self._has_seen(*file.number, file.descriptor):
            return  # a pipe that was inherited
        else:
            finding = open_files.look_at(file)
        if finding is not None:
            self.findings.append(finding)

    def _has_seen(self, *key: int) -> bool:
        size = len(self._seen)
        self._seen.add(key)
        return len(self._seen) == size

    def _socket(self, file: OpenFile) -> Finding | None:
        if self._has_seen(*file.number):
            self.owners.add_holder(file)
            return None
        with socket.socket(fileno=file.holder.take(file.descriptor)) as sock:
            if sock.family == socket.AF_UNIX:
                self.owners.add(file, sock)
            self.reads_late = self.reads_late or sockets.is_read_late(sock)
            return sockets.look_at(file, sock)
