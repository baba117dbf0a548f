"""Looking through a frozen box for what the engine would lose, in one walk over its open files."""

import socket
import stat
from typing import Any

from . import open_files, sockets, wire
from .held import Finding, files_of, holders
from .owners import Owners
from .queues import queues
from .unix_table import unix_sockets

_MOST = 16
"""Findings that are reported: one is enough for a refusal."""


def inspect(request: dict[str, Any], reply: socket.socket) -> None:
    """Report what a child of the frozen box would not have, and who made its sockets.

    This process ends in the namespaces of the box.
    """
    init = request["pid"]
    with holders(request["pids"]) as held:
        table = unix_sockets(init)
        found = [file for holder in held for file in files_of(holder)]
        owners = Owners(table)
        findings: list[Finding] = []
        seen: set[tuple[int, int]] = set()
        for file in found:
            if stat.S_ISSOCK(file.mode):
                owners.add(file)
                if file.number in seen:
                    continue
                seen.add(file.number)
                finding = sockets.look_at(file)
            else:
                finding = open_files.look_at(file)
            if finding is not None:
                findings.append(finding)
        findings += sockets.orphans(init)
        findings += queues(init, found)
        assigned, refused = owners.assigned()
        findings += refused
    told = [[finding.what, finding.drains, finding.hint] for finding in findings[:_MOST]]
    makers = [[pid, owner.uid, owner.gid, *owner.groups] for pid, owner in assigned.items()]
    wire.send(reply, {"ok": True, "findings": told, "makers": makers})
