"""The users that unix sockets report as their makers (SO_PEERCRED), carried over a fork.

The engine makes all sockets again as root, so a server would take its client for root. It makes
a pair, or a listening socket, in the process with the lowest number that holds it. So that
process is given the users that the sockets have now: see csrc/engine/owners.c. What one process
would have to make for several users is refused.
"""

import errno
import socket
import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchflow_sandbox_local.launcher_process.inspection.process_files import Finding, OpenFile
from benchflow_sandbox_local.launcher_process.inspection.unix_sockets import UnixSocket

MOST_GROUPS = 16
"""See csrc/engine/owners.c."""
_NOBODY = 0xFFFFFFFF
_PEERGROUPS = 59
_TABLE = "owners.img"
_RECORD = struct.Struct(f"={4 + MOST_GROUPS}I")
"""A process, a user, a group, how many further groups, and these: `struct owner` there."""
_CREDENTIALS = struct.Struct("=iII")
_HINT = "close the connection before the snapshot, and connect again after it"


@dataclass(frozen=True, slots=True, order=True)
class SocketOwner:
    """The user and groups that made a socket."""

    uid: int
    gid: int
    groups: tuple[int, ...]

    def __str__(self) -> str:
        return f"user {self.uid}, group {self.gid}"


_ROOT = SocketOwner(0, 0, ())


def _key(entry: UnixSocket) -> tuple[int, ...]:
    return tuple(sorted({entry.inode, entry.peer} - {0}))


@dataclass(slots=True)
class _Made:
    """Sockets that the engine makes in one call: a pair, one end, or a listening socket."""

    name: str = ""
    owners: set[SocketOwner] = field(default_factory=set[SocketOwner])
    holders: dict[int, OpenFile] = field(default_factory=dict[int, OpenFile])
    ends: set[int] = field(default_factory=set[int])
    """The inodes that a process holds."""
    pids: set[int] = field(default_factory=set[int])
    """The processes that the sockets name, by their numbers on the host."""

    @property
    def maker(self) -> OpenFile:
        """The open file of the process that will make the sockets."""
        return self.holders[min(self.holders)]

    @property
    def names_another(self) -> bool:
        """Whether it would name a process of another user, whom a reader could look up."""
        maker = self.maker.holder
        (owner,) = self.owners
        return owner.uid not in {0, maker.uid} and self.pids != {maker.pid}


@dataclass(slots=True)
class SocketOwners:
    """The makers of all unix sockets of one sandbox."""

    table: dict[int, UnixSocket]
    _made: dict[tuple[int, ...], _Made] = field(default_factory=dict[tuple[int, ...], _Made])

    def add(self, file: OpenFile, sock: socket.socket) -> None:
        """Note a socket, which a process holds."""
        if (entry := self.table.get(file.number[1])) is None:
            return
        pid, owner = _owner(sock)
        if owner is None:
            return
        made = self._made.setdefault(_key(entry), _Made())
        made.owners.add(owner)
        made.ends.add(entry.inode)
        made.pids.add(pid)
        self.add_holder(file)
        peer = self.table.get(entry.peer)
        made.name = made.name or entry.name or ("" if peer is None else peer.name)

    def add_holder(self, file: OpenFile) -> None:
        """Note that a process holds a socket that is known."""
        entry = self.table.get(file.number[1])
        made = None if entry is None else self._made.get(_key(entry))
        if made is not None:
            made.holders.setdefault(file.holder.inner, file)

    def assigned(self) -> tuple[dict[int, SocketOwner], list[Finding]]:
        """Return the user for each process's sockets, and the sockets that cannot be carried."""
        by_maker: dict[int, list[_Made]] = defaultdict(list)
        findings: list[Finding] = []
        for inodes, made in self._made.items():
            if made.owners != {_ROOT} and not made.ends.issuperset(inodes):
                findings.append(_in_flight(made))
            elif len(made.owners) > 1 or made.names_another:
                findings.append(_refusal(made, made.owners))
            else:
                by_maker[min(made.holders)].append(made)
        assigned: dict[int, SocketOwner] = {}
        for maker, all_made in by_maker.items():
            owners = {owner for made in all_made for owner in made.owners}
            if len(owners) > 1:
                named = next((made for made in all_made if made.name), all_made[0])
                findings.append(_refusal(named, owners))
            elif owners != {_ROOT}:
                (assigned[maker],) = owners
        findings += _too_many_groups(assigned, by_maker)
        return assigned, findings


def write_table(image: str, makers: Iterable[list[int]]) -> None:
    """Write the users of the sockets of each process into a live image."""
    table = b"".join(map(_record, makers))
    if table:
        with open(f"{image}/{_TABLE}", "xb") as file:  # noqa: PTH123 - a path of ours
            file.write(table)


def _record(maker: list[int]) -> bytes:
    process, uid, gid, *groups = maker
    return _RECORD.pack(process, uid, gid, len(groups), *_padded(groups))


def _padded(groups: list[int]) -> list[int]:
    return groups + [0] * (MOST_GROUPS - len(groups))


def table_of(image: str) -> bytes:
    """Return the table that `write_table` wrote into a live image."""
    try:
        with open(f"{image}/{_TABLE}", "rb") as file:  # noqa: PTH123 - a path of ours
            return file.read()
    except FileNotFoundError:
        return b""


def _too_many_groups(
    assigned: dict[int, SocketOwner], by_maker: dict[int, list[_Made]]
) -> Iterable[Finding]:
    for maker, owner in assigned.items():
        if len(owner.groups) > MOST_GROUPS:
            yield _refusal(by_maker[maker][0], {owner})


def _refusal(made: _Made, owners: set[SocketOwner]) -> Finding:
    name = f"the unix socket {made.name!r}" if made.name else "an unnamed unix socket"
    holder = made.maker.holder
    users = " and ".join(str(owner) for owner in sorted(owners))
    return Finding(
        f"who made {name} of {holder} ({users}): a child would take one for another",
        drains=False,
        hint=_HINT,
    )


def _in_flight(made: _Made) -> Finding:
    holder = made.maker.holder
    return Finding(
        f"a unix socket that is on its way to another process, the other end of one of {holder}",
        drains=True,
        hint="let the program receive it, then snapshot",
    )


def _owner(sock: socket.socket) -> tuple[int, SocketOwner | None]:
    """Return the process that a socket names, and the user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    if uid == _NOBODY:
        return pid, None
    return pid, SocketOwner(uid, gid, _groups(sock) if uid else ())


def _groups(sock: socket.socket) -> tuple[int, ...]:
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, 4 * MOST_GROUPS)
    except OSError as error:
        if error.errno == errno.ERANGE:
            return tuple(range(MOST_GROUPS + 1))
        if error.errno in {errno.ENODATA, errno.ENOPROTOOPT}:
            return ()
        raise
    return struct.unpack(f"={len(raw) // 4}I", raw)
