"""Inspect a frozen sandbox for state that the engine would lose, in one walk over its files."""

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

_MAX_FINDINGS = 4
"""Reported findings: one is enough for a refusal, and each may contain a long path."""


def inspect(request: dict[str, Any], reply: socket.socket) -> None:
    """Report the losses of a fork of the frozen sandbox, and the users who made its sockets.

    This process stays in the namespaces of the sandbox until it ends.
    """
    init = request["pid"]
    with holders(request["pids"]) as processes:
        walk = _Walk(SocketOwners(unix_sockets(init)))
        for process in processes:
            for file in files_of(process):
                walk.inspect_file(file)
        if walk.has_unread_tcp:
            walk.findings += sockets.orphans(init)
        walk.findings += queues(init, processes)
        owners, refused = walk.owners.assign()
    # Check permanent losses first. They end the dump without a wait for the others.
    findings = sorted([*walk.findings, *refused], key=lambda finding: finding.drains)
    reported = [
        [finding.loss, finding.drains, finding.hint] for finding in findings[:_MAX_FINDINGS]
    ]
    makers = [[pid, owner.uid, owner.gid, *owner.groups] for pid, owner in owners.items()]
    wire.send(reply, {"ok": True, "findings": reported, "makers": makers})


@dataclass(slots=True)
class _Walk:
    owners: SocketOwners
    findings: list[Finding] = field(default_factory=list[Finding])
    has_unread_tcp: bool = False
    """Whether a TCP connection has unread data."""
    _seen: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])

    def inspect_file(self, file: OpenFile) -> None:
        if stat.S_ISSOCK(file.mode):
            finding = self._socket(file)
        elif stat.S_ISFIFO(file.mode) and self._has_seen(*file.number, file.descriptor):
            return  # a pipe that another process has open under the same number
        else:
            finding = open_files.inspect_file(file)
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
        with socket.socket(fileno=file.holder.duplicate(file.descriptor)) as sock:
            if sock.family == socket.AF_UNIX:
                self.owners.add(file, sock)
            self.has_unread_tcp = self.has_unread_tcp or sockets.is_unread_tcp(sock)
            return sockets.inspect_socket(file, sock)
