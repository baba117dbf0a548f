# The calls themselves are what is asked about: pathlib would stand between.
# ruff: noqa: PTH116, PTH123, PTH208
"""Run in the overlay root, with the library loaded: every way there is to ask for a file."""

import ctypes
import json
import os
import struct

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
STATX = 332 if os.uname().machine == "x86_64" else 291
AT_FDCWD, AT_NOFOLLOW, AT_EMPTY_PATH = -100, 0x100, 0x1000


def number(info):
    return info.st_ino


def by_statx(call, *arguments):
    buffer = ctypes.create_string_buffer(256)
    assert call(*arguments, 0x7FF, buffer) == 0
    major, minor = struct.unpack_from("<II", buffer, 136)
    return [struct.unpack_from("<Q", buffer, 32)[0], os.makedev(major, minor)]


def by_old_glibc(call, *before_buffer, after=()):
    """The functions that programs built before glibc 2.33 call."""
    buffer = ctypes.create_string_buffer(256)
    version = 1 if os.uname().machine == "x86_64" else 0
    assert call(version, *before_buffer, buffer, *after) == 0
    return struct.unpack_from("<Q", buffer, 8)[0]


def descriptors():
    found = {}
    data = os.open("/data", os.O_RDONLY)
    path_only = os.open("/data/pinned", os.O_PATH)
    with open("/data/pinned", "rb") as file:
        found["fstat"] = number(os.fstat(file.fileno()))
        found["fxstat"] = by_old_glibc(libc.__fxstat64, file.fileno())
        found["statx empty"] = by_statx(libc.statx, file.fileno(), b"", AT_EMPTY_PATH)[0]
    found["path only"] = number(os.fstat(path_only))
    found["below"] = number(os.stat("pinned", dir_fd=data))
    found["below, a link"] = number(os.stat("link", dir_fd=data))
    found["below, long"] = number(os.stat("./" * 1000 + "pinned", dir_fd=data))
    found["absolute"] = number(os.stat("/data/pinned", dir_fd=data))
    found["fxstatat"] = by_old_glibc(libc.__fxstatat64, data, b"pinned", after=(0,))
    return found


def pinned():
    return descriptors() | {
        "stat": number(os.stat("/data/pinned")),
        "lstat": number(os.lstat("/data/pinned")),
        "through a link": number(os.stat("/data/link")),
        "scandir": next(number(e.stat()) for e in os.scandir("/data") if e.name == "pinned"),
        "xstat": by_old_glibc(libc.__xstat64, b"/data/link"),
        "lxstat": by_old_glibc(libc.__lxstat64, b"/data/pinned"),
        "statx": by_statx(libc.statx, AT_FDCWD, b"/data/link", 0)[0],
        "by number": by_statx(libc.syscall, STATX, AT_FDCWD, b"/data/pinned", 0)[0],
    }


def errors():
    def errno_of(action):
        try:
            action()
        except OSError as error:
            return error.errno
        return 0

    ctypes.set_errno(77)
    fine = libc.lstat(b"/data/plain", ctypes.create_string_buffer(256))
    kept = ctypes.get_errno()
    refused = libc.syscall(STATX, -1, b"x", 0, 0, ctypes.create_string_buffer(256))
    return {
        "missing": errno_of(lambda: os.stat("/data/missing")),
        "bad descriptor": errno_of(lambda: os.fstat(999)),
        "no directory": errno_of(lambda: os.stat("/data/plain/x")),
        "kept": [fine, kept],
        "by number": [refused, ctypes.get_errno()],
    }


def unprivileged():
    """As a user who may not read the file."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setuid(12345)
        os.write(write, str(os.stat("/data/unreadable").st_ino).encode())
        os._exit(0)
    os.wait()
    return int(os.read(read, 100))


told = {
    "pinned": pinned(),
    "devices": [os.lstat(f"/data/{name}").st_dev for name in os.listdir("/data")]
    + [os.stat(path).st_dev for path in ("/", "/data", "/etc/passwd")]
    + [by_statx(libc.statx, AT_FDCWD, b"/data", 0)[1]],
    "others": {
        n: os.lstat(f"/data/{n}").st_ino for n in ("stale", "short", "plain", "link", "fifo")
    },
    "unreadable": unprivileged(),
    "errors": errors(),
    "proc_device": os.stat("/proc/version").st_dev,
}
print(json.dumps(told))
