"""The packaged programs and libraries."""

import os
from pathlib import Path

from benchflow_sandbox_native.errors import NativeMissingError


def init_path() -> Path:
    """Return the path of the static bf-init program.

    It runs in any Linux root of this machine's architecture: it needs no loader and no library.

    Raises:
        NativeMissingError: The package was not built, or the program was deleted. The message
            ends with the command that builds it.
    """
    return _built("bf-init")


def guest_path() -> Path:
    """Return the path of the static bf-guest program, the init of a sandbox with named pipes.

    Raises:
        NativeMissingError: See `init_path`.
    """
    return _built("bf-guest")


def link_path() -> Path:
    """Return the path of the static bf-link program, the guest of a sandbox on another machine.

    Raises:
        NativeMissingError: See `init_path`.
    """
    return _built("bf-link")


def pager_path() -> Path:
    """Return the path of the static bf-pager program.

    It loads the memory of a restored sandbox while the sandbox already runs.

    Raises:
        NativeMissingError: See `init_path`.
    """
    return _built("bf-pager")


def identity_library() -> Path:
    """Return the path of bf-identity.so, which keeps the identity of files over a live fork.

    Dynamic programs of either libc load it by `LD_PRELOAD` or `/etc/ld.so.preload`. It then
    reports a constant `st_dev` for the files of an overlay root, and the `st_ino` that the host
    pinned. It links no library, allocates no memory and keeps no state between two calls.

    Raises:
        NativeMissingError: See `init_path`.
    """
    return _built("bf-identity.so")


def engine_library() -> Path:
    """Return the path of bf-engine.so, which CRIU loads by `LD_PRELOAD`.

    It reads the limits of other users' processes from /proc when the kernel refuses, as for a root
    without CAP_SYS_RESOURCE. Before restored processes run, it writes new file numbers at the
    addresses that `bf_places` found in the image, and sets attributes that CRIU does not restore.
    If CRIU's configuration is a socket, it receives orders there.

    Raises:
        NativeMissingError: See `init_path`.
    """
    return _built("bf-engine.so")


def _built(name: str) -> Path:
    path = Path(__file__).parent / "bin" / name
    if not os.access(path, os.X_OK):
        raise NativeMissingError(
            f"no executable file at {str(path)!r}; "
            "hint: build it with `uv sync --reinstall-package benchflow-sandbox-native` "
            "or `pip install --force-reinstall benchflow-sandbox-native`"
        )
    return path
