"""Restore the users that unix sockets report as their makers (SO_PEERCRED).

The engine creates all sockets as root, so a server would see a client of root. It creates a pair,
or a listening socket, in the process with the lowest number that has it open. So that process
creates its sockets as their first makers: see csrc/engine/owners.c. A dump is refused if one
process would have to create sockets for several users.
"""

import errno
import socket
import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from benchflow_sandbox_local.launcher_process.inspection.process_files import Finding, OpenFile
from benchflow_sandbox_local.launcher_process.inspection.unix_sockets import UnixSocket

MAX_GROUPS = 16
"""See csrc/engine/owners.c."""
_NOBODY = 0xFFFFFFFF
_PEERGROUPS = 59
_TABLE = "owners.img"
_RECORD = struct.Struct(f"={4 + MAX_GROUPS}I")
"""A process, a user, a group, the number of further groups, and these: `struct owner` there."""
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
class _SocketGroup:
    """Sockets that the engine creates in one call: a pair, one end, or a listening socket."""

    name: str = ""
    owners: set[SocketOwner] = field(default_factory=set[SocketOwner])
    holders: dict[int, OpenFile] = field(default_factory=dict[int, OpenFile])
    ends: set[int] = field(default_factory=set[int])
    """The inodes of the ends that a process has open."""
    pids: set[int] = field(default_factory=set[int])
    """The processes that the sockets report, by their numbers on the host."""

    @property
    def maker(self) -> OpenFile:
        """The open file of the process that will create the sockets."""
        return self.holders[min(self.holders)]

    @property
    def names_another(self) -> bool:
        """Whether a restored socket would report a process of another user as its maker."""
        maker = self.maker.holder
        (owner,) = self.owners
        return owner.uid not in {0, maker.uid} and self.pids != {maker.pid}


@dataclass(slots=True)
class SocketOwners:
    """The makers of all unix sockets of one sandbox."""

    table: dict[int, UnixSocket]
    _groups: dict[tuple[int, ...], _SocketGroup] = field(
        default_factory=dict[tuple[int, ...], _SocketGroup]
    )

    def add(self, file: OpenFile, sock: socket.socket) -> None:
        """Add a socket that a process has open."""
        if (entry := self.table.get(file.number[1])) is None:
            return
        pid, owner = _owner(sock)
        if owner is None:
            return
        group = self._groups.setdefault(_key(entry), _SocketGroup())
        group.owners.add(owner)
        group.ends.add(entry.inode)
        group.pids.add(pid)
        self.add_holder(file)
        peer = self.table.get(entry.peer)
        group.name = group.name or entry.name or ("" if peer is None else peer.name)

    def add_holder(self, file: OpenFile) -> None:
        """Record that a further process has a known socket open."""
        entry = self.table.get(file.number[1])
        group = None if entry is None else self._groups.get(_key(entry))
        if group is not None:
            group.holders.setdefault(file.holder.inner, file)

    def assign(self) -> tuple[dict[int, SocketOwner], list[Finding]]:
        """Return the user for the sockets of each process, and the sockets that are refused."""
        by_maker: dict[int, list[_SocketGroup]] = defaultdict(list)
        findings: list[Finding] = []
        for inodes, group in self._groups.items():
            if group.owners != {_ROOT} and not group.ends.issuperset(inodes):
                findings.append(_in_flight(group))
            elif len(group.owners) > 1 or group.names_another:
                findings.append(_refusal(group, group.owners))
            else:
                by_maker[min(group.holders)].append(group)
        by_process: dict[int, SocketOwner] = {}
        for maker, groups in by_maker.items():
            owners = {owner for group in groups for owner in group.owners}
            if len(owners) > 1:
                named = next((group for group in groups if group.name), groups[0])
                findings.append(_refusal(named, owners))
            elif owners != {_ROOT}:
                (by_process[maker],) = owners
        findings += _too_many_groups(by_process, by_maker)
        return by_process, findings


def write_table(image: str, makers: Iterable[list[int]]) -> None:
    """Write the users of the sockets of each process into a live image."""
    table = b"".join(map(_record, makers))
    if table:
        with open(f"{image}/{_TABLE}", "xb") as file:  # noqa: PTH123 - an internal path
            file.write(table)


def _record(maker: list[int]) -> bytes:
    process, uid, gid, *groups = maker
    return _RECORD.pack(process, uid, gid, len(groups), *_pad(groups))


def _pad(groups: list[int]) -> list[int]:
    return groups + [0] * (MAX_GROUPS - len(groups))


def table_of(image: str) -> bytes:
    """Return the table that `write_table` wrote into a live image; `b""` if it has none."""
    try:
        with open(f"{image}/{_TABLE}", "rb") as file:  # noqa: PTH123 - an internal path
            return file.read()
    except FileNotFoundError:
        return b""


def _too_many_groups(
    by_process: dict[int, SocketOwner], by_maker: dict[int, list[_SocketGroup]]
) -> Iterable[Finding]:
    for maker, owner in by_process.items():
        if len(owner.groups) > MAX_GROUPS:
            yield _refusal(by_maker[maker][0], {owner})


def _refusal(group: _SocketGroup, owners: set[SocketOwner]) -> Finding:
    name = f"the unix socket {group.name!r}" if group.name else "an unnamed unix socket"
    holder = group.maker.holder
    users = " and ".join(str(owner) for owner in sorted(owners))
    return Finding(
        f"the maker of {name} of {holder} ({users}): a child would see another user",
        drains=False,
        hint=_HINT,
    )


def _in_flight(group: _SocketGroup) -> Finding:
    holder = group.maker.holder
    return Finding(
        f"a unix socket that is on its way to another process, the other end of one of {holder}",
        drains=True,
        hint="let the program receive it, then snapshot",
    )


def _owner(sock: socket.socket) -> tuple[int, SocketOwner | None]:
    """Return the process and the user that a socket reports as its maker."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    if uid == _NOBODY:
        return pid, None
    return pid, SocketOwner(uid, gid, _groups(sock) if uid else ())


def _groups(sock: socket.socket) -> tuple[int, ...]:
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, 4 * MAX_GROUPS)
    except OSError as error:
        if error.errno == errno.ERANGE:
            return tuple(range(MAX_GROUPS + 1))
        if error.errno in {errno.ENODATA, errno.ENOPROTOOPT}:
            return ()
        raise
    return struct.unpack(f"={len(raw) // 4}I", raw)
