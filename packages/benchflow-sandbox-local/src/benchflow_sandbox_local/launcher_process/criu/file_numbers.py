# Raw names: all paths are our own or below /proc, and the sandbox is frozen.
# ruff: noqa: PTH108, PTH110, PTH116, PTH123, PTH208
"""File numbers in the memory of processes that do not load the identity library.

SQLite knows its open databases by device and inode. In a child they have other numbers. The
library of the native package hides that from dynamic programs; a static one asks the kernel
itself. For static programs, the dump notes the numbers of open files, and SQLite's copies of
these numbers are found in the image. The engine replaces them before a process of a child runs.
"""

import ctypes
import errno
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from . import image_entries

_NOTED, _FOUND, _GIVEN = "noted", "places.img", "places"
_RECORD = struct.Struct("<IIQQQ")
"""A process, a descriptor, an address, a device and an inode: `struct number` of the library."""
_SPAN = struct.Struct("<QQ")
_LIBRARY = b"/.bf-identity.so"
_PRESENT = 4
"""Of pages that the engine has written, in the flags of their entry."""
_WHY = {
    errno.EAGAIN: "opens or closes a SQLite database at this instant",
    errno.E2BIG: "has more memory that looks like SQLite's than files that are open",
}

Record = tuple[int, int, int, int, int]


def note(group: str, image: str) -> None:
    """Note the numbers of the regular files that the frozen processes of `group` have open."""
    records = bytearray()
    for pid in _read(f"{group}/cgroup.procs").split():
        place = f"/proc/{int(pid)}"
        if files := list(_open_files(place)):
            inner = _inner_number(place)
            for descriptor, info in files:
                records += _RECORD.pack(inner, descriptor, 0, info.st_dev, info.st_ino)
    if records:
        _write(f"{image}/{_NOTED}", bytes(records))


def find(image: str, library: str | None) -> None:
    """Find where SQLite keeps the noted numbers, and write the places into the image. Idempotent.

    Only the memory of processes that run without the identity library is searched.

    Raises:
        OSError: A structure is incomplete or inconsistent: no child may be made of the image.
    """
    try:
        records = list(_RECORD.iter_unpack(_read(f"{image}/{_NOTED}")))
    except FileNotFoundError:
        return
    covered = _named(image, _LIBRARY)
    found = b""
    for process, files in groupby(sorted(records, key=_in_order), itemgetter(0)):
        if not _maps(image, process, covered):
            found += _search(image, process, list(files), library)
    if found:
        _write(f"{image}/{_FOUND}", found)
    os.unlink(f"{image}/{_NOTED}")


def hand_over(image: str, work: str, library: str | None) -> None:
    """Copy the result of `find` for the engine that restores a sandbox in `work`.

    Raises:
        OSError: There is a result, and the engine has no library that could use it.
    """
    try:
        found = _read(f"{image}/{_FOUND}")
    except FileNotFoundError:
        return
    if library is None:
        raise OSError(errno.ENOSYS, "file numbers cannot be exchanged without bf-engine.so")
    _write(f"{work}/{_GIVEN}", found)


def require_exchanged(work: str) -> None:
    """Raise `OSError` when the engine in `work` has not exchanged every number."""
    if os.path.exists(f"{work}/{_GIVEN}"):
        raise OSError(errno.EIO, "the engine has left old file numbers in a process")


def _in_order(record: tuple[Any, ...]) -> tuple[Any, ...]:
    process, descriptor, _, device, inode = record
    return process, device, inode, descriptor


def _open_files(place: str) -> Iterator[tuple[int, os.stat_result]]:
    for name in os.listdir(f"{place}/fd"):
        info = os.stat(f"{place}/fd/{name}")
        if stat.S_ISREG(info.st_mode):
            yield int(name), info


def _inner_number(place: str) -> int:
    _, _, numbers = _read(f"{place}/status").partition(b"\nNSpid:")
    return int(numbers.partition(b"\n")[0].split()[-1])


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(content)


def _named(image: str, name: bytes) -> set[int]:
    """Return the engine's numbers of the files that are called `name`."""
    found: set[int] = set()
    for entry in image_entries.entries(f"{image}/files.img"):
        for key, value in image_entries.fields(entry):
            if key == 3 and isinstance(value, bytes) and name in value:
                found.add(image_entries.numbers(entry)[2])
    return found


def _maps(image: str, process: int, files: set[int]) -> bool:
    """Return whether a process has one of `files` in its memory."""
    (memory,) = image_entries.entries(f"{image}/mm-{process}.img")
    maps = (value for key, value in image_entries.fields(memory) if key == 14)
    return any(
        image_entries.numbers(entry).get(4) in files for entry in maps if isinstance(entry, bytes)
    )


def _search(image: str, process: int, files: list[Record], library: str | None) -> bytes:
    if library is None:
        raise OSError(errno.ENOSYS, "file numbers cannot be found without bf-engine.so")
    pages, spans = _spans(image, process)
    if not spans:
        return b""
    known = b"".join(_RECORD.pack(*record) for record in files)
    packed = b"".join(_SPAN.pack(*span) for span in spans)
    room = ctypes.create_string_buffer(len(known))
    places = ctypes.CDLL(library).bf_places
    places.restype = ctypes.c_long
    with open(f"{image}/pages-{pages}.img", "rb") as file:
        if os.fstat(file.fileno()).st_size != sum(size for _, size in spans):
            raise OSError(errno.EINVAL, f"the memory of process {process} is not all there")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
            start = ctypes.c_char.from_buffer(memory)
            counts = [ctypes.c_long(size) for size in (len(spans), len(files))]
            count = places(
                ctypes.byref(start), packed, counts[0], known, counts[1], room, counts[1]
            )
            del start
    if count < 0:
        raise OSError(-count, f"process {process} {_WHY.get(-count, 'cannot be searched')}")
    return room.raw[: count * _RECORD.size]


def _spans(image: str, process: int) -> tuple[int, list[tuple[int, int]]]:
    """Return which pages are a process's, and the addresses and sizes of what they hold."""
    head, *rest = image_entries.entries(f"{image}/pagemap-{process}.img")
    spans: list[tuple[int, int]] = []
    for entry in map(image_entries.numbers, rest):
        if not entry.get(4, _PRESENT) & _PRESENT:
            continue
        address, size = entry[1], (entry.get(5) or entry[2]) * mmap.PAGESIZE
        if spans and sum(spans[-1]) == address:
            spans[-1] = (spans[-1][0], spans[-1][1] + size)
        else:
            spans.append((address, size))
    return image_entries.numbers(head)[1], spans
