"""The program that the lazy probe forks: it knows the content of each of its pages.

It runs inside a sandbox, with any Python 3.9 or newer, and this file is all that it needs. For
each line of input, it changes its memory in the ways that a pager has to follow, while pages
are still missing. Then it compares all of its memory, also in a forked child and in a thread,
and answers with one line.
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
    """Return what a page holds."""
    return (number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "little") * (PAGE // 8)


class Memory:
    """A private mapping, and what each of its pages must be."""

    def __init__(self, megabytes: int) -> None:
        self.expected: dict[int, int | None] = {}
        base = self.new(megabytes << 20)
        for number in range((megabytes << 20) // PAGE):
            self.expected[base + number * PAGE] = number + 1
            ctypes.memmove(base + number * PAGE, page_of(number + 1), PAGE)
        self.base = base

    @staticmethod
    def new(size: int, at: int = 0) -> int:
        """Map memory that was never written."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x10 if at else 0)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        where = ctypes.c_void_p(at)
        made = LIBC.mmap(where, ctypes.c_size_t(size), protection, flags, -1, ctypes.c_long(0))
        if made in {None, 2**64 - 1}:
            raise OSError(ctypes.get_errno(), "mmap")
        return int(made)

    def change(self) -> None:
        """Give a range back, put an empty one in place of another, and move a third."""
        given, replaced, moved = (self.base + step * RANGE for step in range(3))
        size = ctypes.c_size_t(RANGE)
        if LIBC.madvise(ctypes.c_void_p(given), size, MADV_DONTNEED) != 0:
            raise OSError(ctypes.get_errno(), "madvise")
        LIBC.munmap(ctypes.c_void_p(replaced), size)
        self.new(RANGE, replaced)
        to = self.new(RANGE)
        flags = MREMAP_MAYMOVE | MREMAP_FIXED
        if LIBC.mremap(ctypes.c_void_p(moved), size, size, flags, ctypes.c_void_p(to)) != to:
            raise OSError(ctypes.get_errno(), "mremap")
        for place in range(0, RANGE, PAGE):
            self.expected[given + place] = self.expected[replaced + place] = None
            self.expected[to + place] = self.expected.pop(moved + place)
        self.base += 3 * RANGE

    def wrong(self) -> int:
        """Return how many pages are not what they must be."""
        found = 0
        for address, number in self.expected.items():
            right = ZEROS if number is None else page_of(number)
            found += ctypes.string_at(address, PAGE) != right
        return found

    def wrong_in_a_child(self) -> int:
        """Return 0 when a forked child finds nothing wrong."""
        pid = os.fork()
        if pid == 0:
            os._exit(self.wrong() != 0)
        return os.waitpid(pid, 0)[1]


def look(memory: Memory) -> dict[str, int]:
    """Change the memory; return the number of wrong pages, by the process that found them."""
    found: dict[str, int] = {}
    thread = threading.Thread(target=lambda: found.update(thread=memory.wrong()))
    memory.change()
    thread.start()
    found["a forked child"] = memory.wrong_in_a_child()
    thread.join()
    found["the process"] = memory.wrong()
    return {who: count for who, count in found.items() if count}


def tell(message: object) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until the end of the input. `argv[1]` is a size in megabytes."""
    memory = Memory(int(sys.argv[1]))
    tell("ready")
    for _ in sys.stdin:
        tell(look(memory))


if __name__ == "__main__":
    main()
