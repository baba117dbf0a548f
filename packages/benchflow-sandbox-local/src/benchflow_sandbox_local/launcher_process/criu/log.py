"""Read the log of an engine: the reason of a failure, and its warnings."""

import os
import re
import signal
from contextlib import suppress

LOG = "engine.log"
ERRORS = "engine.err"
"""The standard error of an engine, which it uses before its log is open."""
_MAX_BYTES = 1 << 16
_MAX_LINES = 4
_MARK = "Error "
# Without CAP_SYS_RESOURCE an engine cannot raise this limit, but it works.
_NOT_A_CAUSE = "RLIMIT_NOFILE"


def open_errors(directory: str) -> int:
    """Open the standard error of an engine, before the engine creates its own mounts.

    A mount with a file that is open for writing cannot become read-only.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return os.open(f"{directory}/{ERRORS}", flags, 0o600)


def report(errors: int, error: BaseException) -> None:
    """Write to the standard error of an engine why its program did not start."""
    os.write(errors, f"Error (launcher): {error or type(error).__name__}\n".encode())


def status_of(ended: os.waitid_result | None) -> int:
    """Return the wait status of a process from the result of `waitid`."""
    if ended is None:
        return 0
    return ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status


def how_ended(status: int) -> str:
    """Describe the end of a process from its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def failure_reason(directory: str, status: int) -> str:
    """Return the reason why the engine in `directory` has failed."""
    log, errors = _lines(f"{directory}/{LOG}"), _lines(f"{directory}/{ERRORS}")
    reasons = [line.partition(_MARK)[2] for line in log if _MARK in line]
    reasons += [line.partition(_MARK)[2] if _MARK in line else line for line in errors]
    reasons = [line for line in reasons if _NOT_A_CAUSE not in line]
    end = f"the engine {how_ended(status)}"
    if not reasons:
        return f"{end}; its log ends with {log[-1]!r}" if log else f"{end} and logged nothing"
    text = "; ".join(reasons[:_MAX_LINES])
    return f"{end}: {text}" if os.WIFSIGNALED(status) else text


def _lines(path: str) -> list[str]:
    """Return the lines of a file that are not empty."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - an internal path
            text = file.read(_MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


_MAX_LOG = 1 << 20
_WARNING = re.compile(rb"Warn\s+\([^)]*\): (.*)")
HARMLESS: dict[str, str] = {
    # In every dump or restore.
    "--network-lock will be ignored": "no network is locked",
    "Set CLONE_PARENT | CLONE_NEWPID": "kernels since 3.11 have both",
    # Missing features of a kernel. If the engine needs one, it fails.
    "Dirty tracking is OFF": "it is for incremental dumps",
    "pagemap-cache: The pagemap cache is disabled": "slower",
    "clone3() with set_tid not supported": "another call gives a process its number",
    "compat_cr is not supported": "programs of 32 bits fail",
    "Couldn't find iptables version": "no network is locked",
    "Couldn't find ip6tables version": "no network is locked",
    "Nftables based locking requires": "no network is locked",
    "Can't create nftables table": "no network is locked",
    "NSID": "the launcher creates the network namespace",
    "net: NSID": "the launcher creates the network namespace",
    "Unable to create a netlink socket: NSID": "the launcher creates the network namespace",
    "ioctl(PAGEMAP_SCAN) doesn't support PAGE_IS_GUARD": "a dump of guard pages fails",
    "Pidfd store requires": "it is for incremental dumps",
    "Failed to find pipe_ino option": "it is for automatic mounts, which a sandbox does not have",
    "Loginuid restore is OFF": "a sandbox does not have a login uid",
    "Hardware breakpoints don't seem to work": "another way to stop a process is used",
    "Skylake xsave fpu bug workaround used": "all registers are saved",
    "ptrace doesn't support PTRACE_PEEKSIGINFO": "a dump of pending signals fails",
    "Can't fetch file_stat": "a default for the engine's own table",
    "Can't fetch ": "a default for the engine's own table",
    # The engine's cache of kernel features.
    "Stale ": "the engine detects the features again",
    "Can't load ": "the engine detects the features again",
    "Can't keep kdat cache": "the engine detects the features again",
    # About the processes.
    "prctl PR_SET_THP_DISABLE sets MADV_NOHUGEPAGE": "affects only the speed",
    "Disabling transparent huge pages": "affects only the speed",
    "Will restore ": "a call that waits ends with EINTR, as after a signal",
    "Dumpable flag [": "other processes can read less of the process than before",
    "fsnotify: The 0x": "the inspection found no event, so reads of the host caused these events",
    "fsnotify: \t\tDetected FS_EVENT_ON_CHILD bit": "the kernel itself sets it again",
    "Build-ID (For validation)": "a program is checked by its size",
    "Couldn't find any program headers": "a file is checked by its size",
    "Couldn't mmap file": "a file is checked by its size",
    "Invalid description size for build-id": "a file is checked by its size",
    "Unsupported stack guard detected": "the stack is unchanged",
    "Suspiciously short VMA": "it is unchanged",
}
"""The start of each known warning, and the reason why it is harmless."""
_KNOWN = tuple(text.encode() for text in HARMLESS)


class UnknownWarningError(OSError):
    """The engine logged a warning that is not in `HARMLESS`."""


def refuse_unknown(directory: str) -> None:
    """Raise `UnknownWarningError` unless every warning of the engine is harmless."""
    try:
        with open(f"{directory}/{LOG}", "rb") as file:  # noqa: PTH123 - an internal path
            text = file.read(_MAX_LOG)
    except FileNotFoundError:
        return
    for warning in _WARNING.findall(text):
        if not warning.startswith(_KNOWN):
            shown = warning.decode("utf-8", "replace")[:300]
            raise UnknownWarningError(71, f"the engine logged an unknown warning: {shown}")
