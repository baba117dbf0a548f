"""System calls that the standard library does not have."""

import ctypes
import os

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 1 << 14, 1 << 18
MNT_DETACH = 2

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_INTO_CGROUP = 0x200000000

RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS = 0x01, 0x02, 0x04
RESOLVE_IN_ROOT = 0x10

MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4

# Numbers above 423 are the same on every architecture.
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_CLONE3, _SYS_OPENAT2, _SYS_MOUNT_SETATTR = (
    428,
    429,
    435,
    437,
    442,
)
_SYS_PIDFD_GETFD = 438
_ARCH_NUMBERS = {
    "x86_64": {"pivot_root": 155, "capset": 126, "ioprio_get": 252},
    "aarch64": {"pivot_root": 41, "capset": 91, "ioprio_get": 31},
}

_libc = ctypes.CDLL(None, use_errno=True)
# PyDLL keeps the interpreter lock during clone, so the child's copy of the lock is consistent.
_locked_libc = ctypes.PyDLL(None, use_errno=True)
for _library in (_libc, _locked_libc):
    _library.syscall.restype = ctypes.c_long


def machine() -> str:
    """Return the architecture name of the running kernel."""
    return os.uname().machine


def _check(result: int, operation: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{operation}: {os.strerror(number)}")
    return result


def _arch_number(name: str) -> int:
    numbers = _ARCH_NUMBERS.get(machine())
    if numbers is None:
        raise OSError(38, f"{name}: no system call table for {machine()}")
    return numbers[name]


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount a file system; raise an `OSError` with the target in its message."""
    args = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(_libc.mount(*args), f"mount {kind or 'bind'} on {target}")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """Unmount a file system; by default also if a file in it is open."""
    _check(_libc.umount2(target.encode(), flags), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of this mount namespace."""
    number = _arch_number("pivot_root")
    _check(_libc.syscall(ctypes.c_long(number), new.encode(), old.encode()), "pivot_root")


def unshare(flags: int) -> None:
    """Move this process into new namespaces of the kinds in `flags`."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind `fd`."""
    _check(_libc.setns(fd, ctypes.c_int(kind)), "setns")


def sethostname(name: str) -> None:
    """Set the host name of this uts namespace."""
    raw = name.encode()
    _check(_libc.sethostname(raw, ctypes.c_size_t(len(raw))), "sethostname")


def prctl(option: int, *args: int) -> int:
    """Call prctl with up to four integers."""
    padded = [ctypes.c_ulong(value) for value in (*args, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(ctypes.c_int(option), *padded), f"prctl {option}")


def prctl_pointer(option: int, arg: int, pointer: "ctypes.Structure") -> None:
    """Call prctl with a structure as its third argument."""
    args = (ctypes.c_int(option), ctypes.c_ulong(arg), ctypes.byref(pointer))
    _check(_libc.prctl(*args, ctypes.c_ulong(0), ctypes.c_ulong(0)), f"prctl {option}")


class _CloneArgs(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "flags",
            "pidfd",
            "child_tid",
            "parent_tid",
            "exit_signal",
            "stack",
            "stack_size",
            "tls",
            "set_tid",
            "set_tid_size",
            "cgroup",
        )
    )


def clone(flags: int, cgroup_fd: int | None = None) -> int:
    """Fork into new namespaces, and into the v2 group `cgroup_fd` if it is not None.

    Return 0 in the child. The caller must be single-threaded.
    """
    args = _CloneArgs(flags=flags, exit_signal=17)
    if cgroup_fd is not None:
        args.flags |= CLONE_INTO_CGROUP
        args.cgroup = cgroup_fd
    size = ctypes.c_size_t(ctypes.sizeof(args))
    answer = _locked_libc.syscall(ctypes.c_long(_SYS_CLONE3), ctypes.byref(args), size)
    return _check(answer, "clone3")


class _OpenHow(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("flags", "mode", "resolve"))


def openat2(root: int, path: str | bytes, flags: int, mode: int = 0, *, resolve: int) -> int:
    """Open `path` below the directory `root` with the rules `resolve`."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    raw = os.fsencode(path)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    number = ctypes.c_long(_SYS_OPENAT2)
    while True:
        result = _libc.syscall(number, ctypes.c_int(root), raw, ctypes.byref(how), size)
        # EAGAIN: a rename during the call, so the kernel could not check the rules.
        if result >= 0 or ctypes.get_errno() != 11:
            return _check(result, f"openat2 {os.fsdecode(raw)!r}")


class _MountAttr(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")
    )


_AT_EMPTY_PATH, _AT_RECURSIVE, _OPEN_TREE_CLONE, _MOVE_MOUNT_F_T_EMPTY = 0x1000, 0x8000, 1, 0x44


def clone_mount(path: str, attributes: int) -> int:
    """Return a detached copy of the mounts at `path` with `attributes` set."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    number = ctypes.c_long(_SYS_OPEN_TREE)
    raw = path.encode()
    tree = _check(_libc.syscall(number, ctypes.c_int(-100), raw, ctypes.c_uint(flags)), path)
    _set_attributes(tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, _MountAttr(attr_set=attributes))
    return tree


def protect_mounts() -> None:
    """Make every mount read-only, in this namespace only."""
    _set_attributes(-100, b"/", _AT_RECURSIVE, _MountAttr(attr_set=MOUNT_ATTR_RDONLY))


def make_writable(path: str) -> None:
    """Make the mount at `path` writable, without the mounts below it."""
    _set_attributes(-100, path.encode(), 0, _MountAttr(attr_clr=MOUNT_ATTR_RDONLY))


def _set_attributes(place: int, path: bytes, where: int, attr: "_MountAttr") -> None:
    size = ctypes.c_size_t(ctypes.sizeof(attr))
    number, flags = ctypes.c_long(_SYS_MOUNT_SETATTR), ctypes.c_uint(where)
    answer = _libc.syscall(number, ctypes.c_int(place), path, flags, ctypes.byref(attr), size)
    _check(answer, f"mount_setattr {path.decode()!r}")


def attach_mount(tree: int, target: int) -> None:
    """Attach the result of `clone_mount` at the open file or directory `target`."""
    number = ctypes.c_long(_SYS_MOVE_MOUNT)
    flags = ctypes.c_uint(_MOVE_MOUNT_F_T_EMPTY)
    _check(_libc.syscall(number, tree, b"", target, b"", flags), "move_mount")


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def capset(mask: int) -> None:
    """Set the effective and permitted sets to `mask`, and clear the inheritable set."""
    header = _CapHeader(0x20080522, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    number = ctypes.c_long(_arch_number("capset"))
    _check(_libc.syscall(number, ctypes.byref(header), data), "capset")


def pidfd_getfd(pidfd: int, descriptor: int) -> int:
    """Duplicate the open file of another process; return our descriptor."""
    number = ctypes.c_long(_SYS_PIDFD_GETFD)
    return _check(_libc.syscall(number, pidfd, descriptor, ctypes.c_uint(0)), "pidfd_getfd")


def io_priority(thread: int) -> int:
    """Return the I/O priority of a thread: 13 bits of the level, and the class above them."""
    number = ctypes.c_long(_arch_number("ioprio_get"))
    return _check(_libc.syscall(number, 1, thread), "ioprio_get")
