"""Write a live image of one sandbox: pin its files and dump its processes.

With a small upper directory, the sandbox continues, and the image gets a copy of the directory.
Otherwise the dump terminates the sandbox, and its directory becomes a layer of the image.
"""

import errno
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow_sandbox_local.launcher_process import wire
from benchflow_sandbox_local.launcher_process.layers import hard_links, inode_pins
from benchflow_sandbox_local.launcher_process.layers.workspace import Workspace

from . import attributes, file_numbers, log, sessions, socket_owners
from .program import ConfinedCriu, CriuDump, EngineError

_EOWNERDEAD = 130

_LINK_NAME = b"link_remap."
"""The name of a link that the engine creates to a file without a name."""


@dataclass(frozen=True, slots=True)
class CriuCheckpoint:
    """One request for an image."""

    space: Workspace
    request: dict[str, Any]

    def write(self, reply: socket.socket) -> None:
        """Report that the engine is ready, wait for the order, and report the result.

        Raises:
            OSError: The dump failed, and no part of the image is left. See `CriuDump.finish` for
                the state of the sandbox.
        """
        try:
            with self._dump() as dump:
                wire.send(reply, {"ok": True})
                makers: list[list[int]] = _wait_for_order(reply)["makers"]
                # Files of the sandbox can make these steps fail, so they run before the dump.
                hard_links.complete(self._merged, self._overlay_work)
                is_small = inode_pins.pin(self._upper, self._merged).is_small
                copied = self._write(dump, makers, keep=is_small)
            if is_small and copied is None:
                self._delete()
                with self._dump() as dump:
                    self._write(dump, makers, keep=False)
        except BaseException:
            self._delete()
            raise
        size = self.space.image_bytes(self.request["image"])
        wire.send(reply, {"ok": True, "bytes": size, "copied": copied})

    def _dump(self) -> CriuDump:
        engine = ConfinedCriu.of(self.request, self.space.cache)
        return CriuDump(engine, self.request, self._merged, self._image)

    def _write(self, dump: CriuDump, makers: list[list[int]], *, keep: bool) -> int | None:
        """Write the image. With `keep`, also copy the upper directory; return the copy's size.

        Return None if there is no copy, or if the image also needs files that the copy lacks.
        """
        request, copied = self.request, None
        refuse_unsupported(request["freezer"])
        file_numbers.record(request["freezer"], self._image)
        socket_owners.write_table(self._image, makers)
        attributes.record(request["freezer"], self._image)
        dump.begin(keep=keep)
        if keep:
            # During the dump: the sandbox is frozen, so its files do not change.
            copied = self.space.copy_upper(request["pool"], request["box"], request["layer"])
        dump.finish(request["seconds"])
        sessions.complete(self._image)
        if keep:
            log.refuse_unknown(self._image)
        else:
            self._check_image()
        # The engine has removed its links from the sandbox after the copy, and a child needs them.
        return None if self._has_engine_links() else copied

    def _check_image(self) -> None:
        """Check the image of a terminated sandbox, which is restored from the image next."""
        try:
            log.refuse_unknown(self._image)
            file_numbers.find(self._image, self.request["engine"]["preload"])
        except Exception as error:
            raise EngineError(_EOWNERDEAD, f"{error}, and the sandbox has ended") from error

    def _has_engine_links(self) -> bool:
        return _LINK_NAME in Path(self._image, "files.img").read_bytes()

    def _delete(self) -> None:
        self.space.remove_image(self.request["image"])
        self.space.remove_layer(self.request["pool"], self.request["layer"])

    @property
    def _image(self) -> str:
        return self.space.image(self.request["image"])

    @property
    def _upper(self) -> str:
        return f"{self.space.root}/{self.request['pool']}/u-{self.request['box']}"

    @property
    def _overlay_work(self) -> str:
        return f"{self.space.root}/{self.request['pool']}/w-{self.request['box']}"

    @property
    def _merged(self) -> str:
        return f"{self.space.root}/{self.request['pool']}/m-{self.request['box']}"


def _wait_for_order(reply: socket.socket) -> dict[str, Any]:
    if (received := wire.receive(reply)) is None:
        raise InterruptedError("the runner has cancelled this request")
    return received[0]


_THREAD_TIMER = "notify: signal/tid."
_ALL_HOSTS = {"010000E0", "ff020000000000000000000000000001", "ff010000000000000000000000000001"}
"""The multicast groups of every network: 224.0.0.1, ff02::1 and ff01::1."""
_OF_ADDRESSES = "ff0200000000000000000001ff"
"""The prefix of the groups that the kernel joins for each IPv6 address of an interface."""


def refuse_unsupported(group: str) -> None:
    """Raise `OSError` if a process of the frozen `group` has state that is not restored.

    This is a personality, a timer that signals one thread, a write lease of a file, or a membership
    of a multicast group.
    """
    pids = Path(f"{group}/cgroup.procs").read_text(encoding="ascii").split()
    for pid in pids:
        place = Path("/proc", pid)
        if number := int(_text(place / "personality") or "0", 16):
            raise _not_captured(place, f"has a personality ({number:#x})")
        if _THREAD_TIMER in _text(place / "timers"):
            raise _not_captured(place, "has a POSIX timer for one thread (SIGEV_THREAD_ID)")
    for line in _text(Path("/proc/locks")).splitlines():
        fields = line.split()
        # The host reads the files of the sandbox, and would wait for the end of such a lease.
        if fields[1] == "LEASE" and fields[3] == "WRITE" and fields[4] in pids:
            raise _not_captured(
                Path("/proc", fields[4]), "has a write lease of a file (F_SETLEASE)"
            )
    if pids and (joined := _groups(Path("/proc", pids[0], "net"))):
        raise OSError(
            errno.ENOTSUP, f"a socket is a member of multicast group {joined[0]}: not captured"
        )


def _not_captured(place: Path, state: str) -> OSError:
    name = _text(place / "comm").strip()
    return OSError(errno.ENOTSUP, f"a process {name!r} {state}, which cannot be captured")


def _groups(net: Path) -> list[str]:
    """Return the multicast groups that sockets of a network namespace have joined."""
    joined = [line.split()[0] for line in _text(net / "igmp").splitlines() if line[:1] == "\t"]
    joined += [line.split()[2] for line in _text(net / "igmp6").splitlines()]
    joined = [group for group in joined if not group.startswith(_OF_ADDRESSES)]
    return [group for group in joined if group not in _ALL_HOSTS]


def _text(path: Path) -> str:
    """Return the text of a file of /proc; `""` if the kernel does not have the file."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
