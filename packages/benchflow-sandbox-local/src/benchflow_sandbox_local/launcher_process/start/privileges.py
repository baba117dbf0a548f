"""The privileges of root in a sandbox: few capabilities, and a filter of system calls."""

import ctypes
import os
import struct

from benchflow_sandbox_local.launcher_process.syscalls import capset, machine, prctl, prctl_pointer

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 23, 24, 38, 47
_AMBIENT_CLEAR_ALL = 4

CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "SYS_CHROOT": 18,
}
"""The capabilities of root in a sandbox. Package managers and services need them."""


def drop() -> None:
    """Drop all other capabilities, forbid new ones, and install the filter of system calls."""
    allowed = set(CAPABILITIES.values())
    for number in range(64):
        if number in allowed:
            continue
        try:
            prctl(_PR_CAPBSET_DROP, number)
        except OSError:
            break  # past the last capability of this kernel
    prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    capset(sum(1 << number for number in allowed))
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    install()
    os.umask(0o022)


_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LD, _JEQ, _JSET, _JGE, _RET = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARG0, _OFFSET_ARG1 = 0, 4, 16, 24
_EPERM, _EINVAL, _ENOSYS, _EAFNOSUPPORT = 1, 22, 38, 97
_NEW_NAMESPACES = 0x7E020000
_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink; vsock would bypass the network namespace

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_PRCTL = {"x86_64": 157, "aarch64": 167}
# A live fork would lose the effect of these options, and the host cannot detect them. EINVAL is the
# answer of a kernel without them.
_UNKNOWN_OPTIONS = {
    "PR_SET_TSC": 26,
    "PR_MCE_KILL": 33,
    "PR_SET_SYSCALL_USER_DISPATCH": 59,
    "PR_SET_MDWE": 65,
    "PR_SET_MEMORY_MERGE": 67,
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_FCNTL = {"x86_64": 72, "aarch64": 25}
_F_NOTIFY = 1026
_X32_BIT = 0x40000000

# io_uring bypasses the filter and cannot be checkpointed. The filter cannot read the flags of
# clone3, which are in memory. A live fork would lose the restrictions of Landlock and mseal. ENOSYS
# makes programs use the older calls.
_ABSENT = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "clone3": 435,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "mseal": 462,
}
_DENIED_EVERYWHERE = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "set_mempolicy_home_node": 450,
    "open_tree_attr": 467,
}
# Each call with its numbers on x86_64 and on aarch64.
_DENIED = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "init_module": (175, 105),
    # Docker also denies memory policies. A live fork would lose them.
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}


def _op(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, true, false, value)


def _refuse(number: int, errno: int) -> bytes:
    return _op(_JEQ, number, 0, 1) + _op(_RET, _ERRNO | errno)


def program(arch: str) -> bytes:
    """Return the BPF program for `arch`; raise `KeyError` for an unknown one."""
    column = {"x86_64": 0, "aarch64": 1}[arch]
    code = _op(_LD, _OFFSET_ARCH)
    code += _op(_JEQ, _AUDIT_ARCH[arch], 1, 0) + _op(_RET, _KILL)
    code += _op(_LD, _OFFSET_NUMBER)
    if arch == "x86_64":
        code += _op(_JGE, _X32_BIT, 0, 1) + _op(_RET, _ERRNO | _ENOSYS)
    for number in _ABSENT.values():
        code += _refuse(number, _ENOSYS)
    for number in _DENIED_EVERYWHERE.values():
        code += _refuse(number, _EPERM)
    for numbers in _DENIED.values():
        denied = numbers[column]
        if denied is not None:
            code += _refuse(denied, _EPERM)
    # The host cannot detect a watch by fcntl, and a live fork would lose it.
    code += _op(_JEQ, _FCNTL[arch], 0, 4) + _op(_LD, _OFFSET_ARG1)
    code += _op(_JEQ, _F_NOTIFY, 0, 1) + _op(_RET, _ERRNO | _EINVAL) + _op(_RET, _ALLOW)
    options = _UNKNOWN_OPTIONS.values()
    code += _op(_JEQ, _PRCTL[arch], 0, 2 * len(options) + 2) + _op(_LD, _OFFSET_ARG0)
    for option in options:
        code += _refuse(option, _EINVAL)
    code += _op(_RET, _ALLOW)
    # Refuse new namespaces through clone, and allow all other arguments.
    code += _op(_JEQ, _CLONE[arch], 0, 4) + _op(_LD, _OFFSET_ARG0)
    code += _op(_JSET, _NEW_NAMESPACES, 0, 1) + _op(_RET, _ERRNO | _EPERM) + _op(_RET, _ALLOW)
    code += _op(_JEQ, _SOCKET[arch], 1, 0) + _op(_RET, _ALLOW) + _op(_LD, _OFFSET_ARG0)
    for left, family in zip(range(len(_FAMILIES), 0, -1), _FAMILIES, strict=True):
        code += _op(_JEQ, family, left, 0)
    return code + _op(_RET, _ERRNO | _EAFNOSUPPORT) + _op(_RET, _ALLOW)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install() -> None:
    """Install the filter for this process and its children, permanently.

    The caller must have set `no_new_privs`.
    """
    code = program(machine())
    buffer = ctypes.create_string_buffer(code, len(code))
    # sock_fprog pads the length to the pointer's alignment by itself.
    fprog = _Program(len(code) // 8, ctypes.addressof(buffer))
    prctl_pointer(_PR_SET_SECCOMP, _MODE_FILTER, fprog)
