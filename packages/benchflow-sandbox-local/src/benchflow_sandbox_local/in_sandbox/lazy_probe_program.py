"""The program that the lazy probe forks: it knows the content of each of its pages.

It runs inside a sandbox, with any Python 3.9 or newer, and needs only this file. For each input
line, it changes its memory in each way that a pager must handle, while pages are still missing.
Then it compares all of its memory, also in a forked child and in a thread, and responds with one
line.
"""

import ctypes
import json
import mmap
import os
import sys
import threading

PAGE = mmap.PAGESIZE
MADV_DONTNEED, MREMAP_MAYMOVE, MREMAP_FIXED = 4, 1, 2
RANGE = 64 * PAGE
ZEROS = bytes(PAGE)

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mremap.restype = ctypes.c_void_p
LIBC.mmap.restype = ctypes.c_void_p


def page_of(number: int) -> bytes:
    """Return the content of a page."""
    return (number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "little") * (PAGE // 8)


class Memory:
    """A private mapping, and the expected content of each page."""

    def __init__(self, megabytes: int) -> None:
        self.expected: dict[int, int | None] = {}
        base = self.new(megabytes << 20)
        for number in range((megabytes << 20) // PAGE):
            self.expected[base + number * PAGE] = number + 1
            ctypes.memmove(base + number * PAGE, page_of(number + 1), PAGE)
        self.base = base

    @staticmethod
    def new(size: int, at: int = 0) -> int:
        """Map new memory; return its address."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x10 if at else 0)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        where = ctypes.c_void_p(at)
        address = LIBC.mmap(where, ctypes.c_size_t(size), protection, flags, -1, ctypes.c_long(0))
        if address in {None, 2**64 - 1}:
            raise OSError(ctypes.get_errno(), "mmap")
        return int(address)

    def change(self) -> None:
        """Discard one range, replace the second by an empty one, and move the third."""
        discarded, replaced, moved = (self.base + step * RANGE for step in range(3))
        size = ctypes.c_size_t(RANGE)
        if LIBC.madvise(ctypes.c_void_p(discarded), size, MADV_DONTNEED) != 0:
            raise OSError(ctypes.get_errno(), "madvise")
        LIBC.munmap(ctypes.c_void_p(replaced), size)
        self.new(RANGE, replaced)
        to = self.new(RANGE)
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        if LIBC.mremap(ctypes.c_void_p(moved), size, size, flags, ctypes.c_void_p(to)) != to:
            raise OSError(ctypes.get_errno(), "mremap")
        for place in range(0, RANGE, PAGE):
            self.expected[discarded + place] = self.expected[replaced + place] = None
            self.expected[to + place] = self.expected.pop(moved + place)
        self.base += 3 * RANGE

    def count_wrong(self) -> int:
        """Return the number of pages with wrong content."""
        count = 0
        for address, number in self.expected.items():
            content = ZEROS if number is None else page_of(number)
            count += ctypes.string_at(address, PAGE) != content
        return count

    def check_in_child(self) -> int:
        """Return 0 if a forked child finds no page with wrong content."""
        pid = os.fork()
        if pid == 0:
            os._exit(self.count_wrong() != 0)
        return os.waitpid(pid, 0)[1]


def check(memory: Memory) -> dict[str, int]:
    """Change the memory; return the failures of a thread, a forked child and this process."""
    counts: dict[str, int] = {}
    thread = threading.Thread(target=lambda: counts.update(thread=memory.count_wrong()))
    memory.change()
    thread.start()
    counts["a forked child"] = memory.check_in_child()
    thread.join()
    counts["the process"] = memory.count_wrong()
    return {reader: count for reader, count in counts.items() if count}


def respond(message: object) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until the end of the input. `argv[1]` is a size in megabytes."""
    memory = Memory(int(sys.argv[1]))
    respond("ready")
    for _ in sys.stdin:
        respond(check(memory))


if __name__ == "__main__":
    main()
