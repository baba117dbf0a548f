"""Why an engine has ended, from its log; and which of its warnings are harmless."""

import os
import re
import signal
from contextlib import suppress

LOG = "engine.log"
ERRORS = "engine.err"
"""The standard error of an engine, which it uses before its log is open."""
_MOST_LOGGED = 1 << 16
_MAX_LINES = 4
_MARK = "Error "
# Without CAP_SYS_RESOURCE an engine cannot raise this limit, and works all the same.
_NOT_A_CAUSE = "RLIMIT_NOFILE"


def open_errors(directory: str) -> int:
    """Open the standard error of an engine, before it has mounts of its own.

    They could not be made read-only with a file open in one of them.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return os.open(f"{directory}/{ERRORS}", flags, 0o600)


def note(errors: int, error: BaseException) -> None:
    """Report to the standard error of an engine why its program did not start."""
    os.write(errors, f"Error (launcher): {error or type(error).__name__}\n".encode())


def status_of(ended: os.waitid_result | None) -> int:
    """Return the status of a process that `waitid` has found ended."""
    if ended is None:
        return 0
    return ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status


def how_ended(status: int) -> str:
    """Return how a process ended, by the status of its wait."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def complaint(directory: str, status: int) -> str:
    """Return why the engine that worked in `directory` has failed."""
    log, errors = _lines(f"{directory}/{LOG}"), _lines(f"{directory}/{ERRORS}")
    said = [line.partition(_MARK)[2] for line in log if _MARK in line]
    said += [line.partition(_MARK)[2] if _MARK in line else line for line in errors]
    said = [line for line in said if _NOT_A_CAUSE not in line]
    how = f"the engine {how_ended(status)}"
    if not said:
        return f"{how}; its log ends with {log[-1]!r}" if log else f"{how}, and logged nothing"
    text = "; ".join(said[:_MAX_LINES])
    return f"{how}: {text}" if os.WIFSIGNALED(status) else text


def _lines(path: str) -> list[str]:
    """Return the lines of a file that are not empty."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a path of ours
            text = file.read(_MOST_LOGGED).decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


_MOST = 1 << 20
_WARNING = re.compile(rb"Warn\s+\([^)]*\): (.*)")
HARMLESS: dict[str, str] = {
    # Of every dump or restore.
    "--network-lock will be ignored": "no network is locked",
    "Set CLONE_PARENT | CLONE_NEWPID": "kernels since 3.11 have both",
    # What a kernel lacks; the engine fails when it needs that.
    "Dirty tracking is OFF": "it is for incremental dumps",
    "pagemap-cache: The pagemap cache is disabled": "slower",
    "clone3() with set_tid not supported": "another call gives a process its number",
    "compat_cr is not supported": "programs of 32 bits fail",
    "Couldn't find iptables version": "no network is locked",
    "Couldn't find ip6tables version": "no network is locked",
    "Nftables based locking requires": "no network is locked",
    "Can't create nftables table": "no network is locked",
    "NSID": "the network namespace is the host's to make",
    "net: NSID": "the network namespace is the host's to make",
    "Unable to create a netlink socket: NSID": "the network namespace is the host's to make",
    "ioctl(PAGEMAP_SCAN) doesn't support PAGE_IS_GUARD": "a dump of guard pages fails",
    "Pidfd store requires": "it is for incremental dumps",
    "Failed to find pipe_ino option": "it is for automatic mounts, which a sandbox does not have",
    "Loginuid restore is OFF": "a sandbox does not have a login uid",
    "Hardware breakpoints don't seem to work": "another way to stop a process is used",
    "Skylake xsave fpu bug workaround used": "all registers are there",
    "ptrace doesn't support PTRACE_PEEKSIGINFO": "a dump of pending signals fails",
    "Can't fetch file_stat": "a default for the engine's own table",
    "Can't fetch ": "a default for the engine's own table",
    # Where the engine keeps what it knows of the kernel.
    "Stale ": "it is learned again",
    "Can't load ": "it is learned again",
    "Can't keep kdat cache": "it is learned again",
    # Of the processes.
    "prctl PR_SET_THP_DISABLE sets MADV_NOHUGEPAGE": "speed alone",
    "Disabling transparent huge pages": "speed alone",
    "Will restore ": "a call that waits ends with EINTR, as by a signal",
    "Dumpable flag [": "the process shows less of itself than before",
    "fsnotify: The 0x": "no event waited at the inspection: the events are of the host's reads",
    "fsnotify: \t\tDetected FS_EVENT_ON_CHILD bit": "the kernel sets it again by itself",
    "Build-ID (For validation)": "a program is checked by its size",
    "Couldn't find any program headers": "a file is checked by its size",
    "Couldn't mmap file": "a file is checked by its size",
    "Invalid description size for build-id": "a file is checked by its size",
    "Unsupported stack guard detected": "the stack is as it was",
    "Suspiciously short VMA": "it is as it was",
}
"""The start of a warning, and why nothing is lost."""
_KNOWN = tuple(text.encode() for text in HARMLESS)


class UnknownWarningError(OSError):
    """The engine warned of something that was not reviewed."""


def refuse_unknown(directory: str) -> None:
    """Raise `UnknownWarningError` unless every warning of the engine is harmless."""
    try:
        with open(f"{directory}/{LOG}", "rb") as file:  # noqa: PTH123 - a path of ours
            text = file.read(_MOST)
    except FileNotFoundError:
        return
    for warning in _WARNING.findall(text):
        if not warning.startswith(_KNOWN):
            what = warning.decode("utf-8", "replace")[:300]
            raise UnknownWarningError(71, f"the engine logged an unknown warning: {what}")
