"""A process whose memory bf-pager fills, and which does what it is told to.

`argv` is the socket of the pager and a number of pages; each line of the input is an expression
in Python, and its value is answered as JSON. What CRIU does to a process that it restores, this
does to itself.
"""

import ctypes
import fcntl
import json
import mmap
import os
import platform
import socket
import struct
import sys

PAGE = mmap.PAGESIZE
BASE = 0x200000000000
EVENTS = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6
UFFDIO_API, UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00
FINISHED = struct.pack("=i", 0x52535446)
FIXED = 0x10

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = LIBC.mremap.restype = ctypes.c_void_p


def size_of(count):
    return ctypes.c_size_t(count * PAGE)


def at(number):
    return ctypes.c_void_p(BASE + number * PAGE)


def map_pages(number, count):
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED
    made = LIBC.mmap(at(number), size_of(count), 3, flags, -1, ctypes.c_long(0))
    assert made == BASE + number * PAGE


def register(count):
    number = {"x86_64": 323, "aarch64": 282}[platform.machine()]
    faults = LIBC.syscall(ctypes.c_long(number), os.O_CLOEXEC | os.O_NONBLOCK)
    assert faults >= 0, os.strerror(ctypes.get_errno())
    fcntl.ioctl(faults, UFFDIO_API, struct.pack("=QQQ", 0xAA, EVENTS, 0))
    fcntl.ioctl(faults, UFFDIO_REGISTER, struct.pack("=QQQQ", BASE, count * PAGE, 1, 0))
    return faults


def read(number, count=1):
    """Return the first number of each page."""
    return [
        int.from_bytes(ctypes.string_at(BASE + each * PAGE, 8), "little")
        for each in range(number, number + count)
    ]


def write(number, value):
    ctypes.memmove(BASE + number * PAGE, value.to_bytes(8, "little"), 8)


def give_back(number, count):
    assert LIBC.madvise(at(number), size_of(count), mmap.MADV_DONTNEED) == 0


def replace(number, count):
    LIBC.munmap(at(number), size_of(count))
    map_pages(number, count)


def move(number, count, to):
    flags = 1 | 2  # MREMAP_MAYMOVE, MREMAP_FIXED
    assert LIBC.mremap(at(number), size_of(count), size_of(count), flags, at(to)) == at(to).value


def forked(action):
    """Return what a forked child finds."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(theirs, json.dumps(action()).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as told:
        found = json.loads(told.read())
    assert os.waitpid(pid, 0)[1] == 0
    return found


def finish():
    connection.sendall(FINISHED)


map_pages(0, int(sys.argv[2]))
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
descriptor = register(int(sys.argv[2]))
connection.sendall(struct.pack("=i", -7))  # a zombie of the image
connection.sendall(struct.pack("=i", 1))
socket.send_fds(connection, [b"\0"], [descriptor])
os.close(descriptor)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
