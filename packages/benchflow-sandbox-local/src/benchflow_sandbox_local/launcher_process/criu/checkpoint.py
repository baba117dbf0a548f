"""Taking a live image of one sandbox: pin its files and dump its processes.

A sandbox with a small upper directory continues, and the image gets a copy
of the directory. Any other sandbox ends, and its directory becomes a layer of the image.
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

from . import attributes, file_numbers, log, socket_owners
from .program import ConfinedCriu, CriuDump, EngineError

_EOWNERDEAD = 130

_LINK_NAME = b"link_remap."
"""The name of a link that the engine makes to a file whose own name is gone."""


@dataclass(frozen=True, slots=True)
class CriuCheckpoint:
    """One request for an image."""

    space: Workspace
    request: dict[str, Any]

    def take(self, reply: socket.socket) -> None:
        """Report that the engine is ready, wait for the order, and report the result.

        Raises:
            OSError: It failed, and no part of the image is left. For the sandbox see `CriuDump`.
        """
        try:
            with self._dump() as dump:
                wire.send(reply, {"ok": True})
                makers: list[list[int]] = _await_word(reply)["makers"]
                # A sandbox can make these steps fail, so they come while its processes still live.
                hard_links.complete(self._merged, self._overlay_work)
                keep = inode_pins.pin(self._upper, self._merged).small
                copied = self._write(dump, makers, keep=keep)
            if keep and copied is None:
                self._forget()
                with self._dump() as dump:
                    self._write(dump, makers, keep=False)
        except BaseException:
            self._forget()
            raise
        size = self.space.image_bytes(self.request["image"])
        wire.send(reply, {"ok": True, "bytes": size, "copied": copied})

    def _dump(self) -> CriuDump:
        engine = ConfinedCriu.of(self.request, self.space.cache)
        return CriuDump(engine, self.request, self._merged, self._image)

    def _write(self, dump: CriuDump, makers: list[list[int]], *, keep: bool) -> int | None:
        """Dump everything; return the size of the copy, or None when the copy is not enough."""
        request, copied = self.request, None
        refuse_uncarried(request["freezer"])
        file_numbers.note(request["freezer"], self._image)
        socket_owners.write_table(self._image, makers)
        attributes.note(request["freezer"], self._image)
        dump.begin(keep=keep)
        if keep:
            # Beside the engine: nothing in the sandbox runs, and what it reads is not changed.
            copied = self.space.copy_upper(request["pool"], request["box"], request["layer"])
        dump.finish(request["seconds"])
        if keep:
            log.refuse_unknown(self._image)
        else:
            self._check_what_is_left()
        # The engine has removed its links from the kept sandbox again, and a child needs them.
        return None if self._has_engine_links() else copied

    def _check_what_is_left(self) -> None:
        """Check the image at once: the sandbox itself will be restored from it."""
        try:
            log.refuse_unknown(self._image)
            file_numbers.find(self._image, self.request["engine"]["preload"])
        except Exception as error:
            raise EngineError(_EOWNERDEAD, f"{error}, and the sandbox has ended") from error

    def _has_engine_links(self) -> bool:
        return _LINK_NAME in Path(self._image, "files.img").read_bytes()

    def _forget(self) -> None:
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


def _await_word(reply: socket.socket) -> dict[str, Any]:
    if (received := wire.receive(reply)) is None:
        raise InterruptedError("the runner has cancelled this request")
    return received[0]


_THREAD_TIMER = "notify: signal/tid."
_ALL_HOSTS = {"010000E0", "ff020000000000000000000000000001", "ff010000000000000000000000000001"}
"""The multicast groups of every network: 224.0.0.1, ff02::1 and ff01::1."""
_OF_ADDRESSES = "ff0200000000000000000001ff"
"""How the groups begin that the kernel joins for each IPv6 address of an interface."""


def refuse_uncarried(group: str) -> None:
    """Raise `OSError` when a process of the frozen `group` has something that no child would have.

    That is a personality, a timer that signals one thread, a lease that a reader ends, and a member
    of a multicast group.
    """
    pids = Path(f"{group}/cgroup.procs").read_text(encoding="ascii").split()
    for pid in pids:
        place = Path("/proc", pid)
        if number := int(_text(place / "personality") or "0", 16):
            raise _uncaptured(place, f"has a personality ({number:#x})")
        if _THREAD_TIMER in _text(place / "timers"):
            raise _uncaptured(place, "has a POSIX timer for one thread (SIGEV_THREAD_ID)")
    for line in _text(Path("/proc/locks")).splitlines():
        fields = line.split()
        # The host reads the files of the sandbox, and would wait for the end of such a lease.
        if fields[1] == "LEASE" and fields[3] == "WRITE" and fields[4] in pids:
            raise _uncaptured(
                Path("/proc", fields[4]), "has a lease of a file, to be told of readers"
            )
    if pids and (joined := _groups(Path("/proc", pids[0], "net"))):
        raise OSError(
            errno.ENOTSUP, f"a socket is a member of multicast group {joined[0]}: not captured"
        )


def _uncaptured(place: Path, what: str) -> OSError:
    name = _text(place / "comm").strip()
    return OSError(errno.ENOTSUP, f"a process {name!r} {what}, which cannot be captured")


def _groups(net: Path) -> list[str]:
    """Return the multicast groups that somebody has joined in a network namespace."""
    joined = [line.split()[0] for line in _text(net / "igmp").splitlines() if line[:1] == "\t"]
    joined += [line.split()[2] for line in _text(net / "igmp6").splitlines()]
    joined = [group for group in joined if not group.startswith(_OF_ADDRESSES)]
    return [group for group in joined if group not in _ALL_HOSTS]


def _text(path: Path) -> str:
    """Return what a file of /proc says: nothing where the kernel has no such file."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
