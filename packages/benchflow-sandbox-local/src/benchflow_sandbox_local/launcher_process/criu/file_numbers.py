# Raw names: all paths belong to the launcher or are below /proc, and the sandbox is frozen.
# ruff: noqa: PTH108, PTH110, PTH116, PTH123, PTH208
"""File numbers in the memory of processes that do not load the identity library.

SQLite identifies its open databases by device and inode, and a child has other numbers. The
identity library hides that from dynamic programs, but a static program calls the kernel itself. So
the dump records the numbers of open files, and `find` searches the image for SQLite's copies. The
engine replaces these copies before a process of a child runs.
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

_RECORDED, _FOUND, _FOR_ENGINE = "recorded", "places.img", "places"
_RECORD = struct.Struct("<IIQQQ")
"""A process, a descriptor, an address, a device and an inode: `struct number` of the library."""
_SPAN = struct.Struct("<QQ")
_LIBRARY = b"/.bf-identity.so"
_PRESENT = 4
"""The flag of an entry whose pages the engine has written."""
_REASONS = {
    errno.EAGAIN: "opens or closes a SQLite database at this instant",
    errno.E2BIG: "has more memory that looks like SQLite's than files that are open",
}

Record = tuple[int, int, int, int, int]


def record(group: str, image: str) -> None:
    """Record the numbers of the regular files that the frozen processes of `group` have open."""
    records = bytearray()
    for pid in _read(f"{group}/cgroup.procs").split():
        place = f"/proc/{int(pid)}"
        if files := list(_open_files(place)):
            inner = _inner_number(place)
            for descriptor, info in files:
                records += _RECORD.pack(inner, descriptor, 0, info.st_dev, info.st_ino)
    if records:
        _write(f"{image}/{_RECORDED}", bytes(records))


def find(image: str, library: str | None) -> None:
    """Find the addresses of SQLite's copies of recorded numbers, and write them into the image.

    It searches only the memory of processes that run without the identity library. Idempotent.

    Raises:
        OSError: A structure is incomplete or inconsistent, so the image must not be restored.
    """
    try:
        records = list(_RECORD.iter_unpack(_read(f"{image}/{_RECORDED}")))
    except FileNotFoundError:
        return
    libraries = _files_named(image, _LIBRARY)
    places = b""
    for process, files in groupby(sorted(records, key=_sort_key), itemgetter(0)):
        if not _maps(image, process, libraries):
            places += _search(image, process, list(files), library)
    if places:
        _write(f"{image}/{_FOUND}", places)
    os.unlink(f"{image}/{_RECORDED}")


def copy_for_engine(image: str, work: str, library: str | None) -> None:
    """Copy the result of `find` for the engine that restores a sandbox in `work`.

    Raises:
        OSError: There is a result, and the engine does not have the library that uses it.
    """
    try:
        places = _read(f"{image}/{_FOUND}")
    except FileNotFoundError:
        return
    if library is None:
        raise OSError(errno.ENOSYS, "file numbers cannot be exchanged without bf-engine.so")
    _write(f"{work}/{_FOR_ENGINE}", places)


def require_exchanged(work: str) -> None:
    """Raise `OSError` if the engine in `work` has not exchanged every number."""
    if os.path.exists(f"{work}/{_FOR_ENGINE}"):
        raise OSError(errno.EIO, "the engine has left old file numbers in a process")


def _sort_key(record: tuple[Any, ...]) -> tuple[Any, ...]:
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


def _files_named(image: str, name: bytes) -> set[int]:
    """Return the engine's numbers of the files with a name."""
    files: set[int] = set()
    for entry in image_entries.entries(f"{image}/files.img"):
        for key, value in image_entries.fields(entry):
            if key == 3 and isinstance(value, bytes) and name in value:
                files.add(image_entries.numbers(entry)[2])
    return files


def _maps(image: str, process: int, files: set[int]) -> bool:
    """Return whether a process has mapped one of `files`."""
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
    known = b"".join(_RECORD.pack(*file) for file in files)
    packed = b"".join(_SPAN.pack(*span) for span in spans)
    output = ctypes.create_string_buffer(len(known))
    places = ctypes.CDLL(library).bf_places
    places.restype = ctypes.c_long
    with open(f"{image}/pages-{pages}.img", "rb") as file:
        if os.fstat(file.fileno()).st_size != sum(size for _, size in spans):
            raise OSError(errno.EINVAL, f"the memory of process {process} is truncated")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
            start = ctypes.c_char.from_buffer(memory)
            counts = [ctypes.c_long(size) for size in (len(spans), len(files))]
            count = places(
                ctypes.byref(start), packed, counts[0], known, counts[1], output, counts[1]
            )
            del start
    if count < 0:
        raise OSError(-count, f"process {process} {_REASONS.get(-count, 'cannot be searched')}")
    return output.raw[: count * _RECORD.size]


def _spans(image: str, process: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of a process's file of pages, and the addresses and sizes of its spans."""
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
