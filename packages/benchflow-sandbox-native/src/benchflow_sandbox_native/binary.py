"""The packaged programs and libraries."""

import os
from pathlib import Path

from benchflow_sandbox_native.errors import NativeMissingError


def init_path() -> Path:
    """Return the static bf-init program that was built with this package.

    It runs in any Linux root of this machine's architecture: it needs no loader and no library.

    Raises:
        NativeMissingError: The package is used without having been built, or its program was
            deleted. The message ends with the command that builds it.
    """
    return _built("bf-init")


def guest_path() -> Path:
    """Return the static bf-guest program, the init of a box that has a kernel of its own.

    Raises:
        NativeMissingError: As of `init_path`.
    """
    return _built("bf-guest")


def pager_path() -> Path:
    """Return the static bf-pager program, which fills the memory of a box while the box runs.

    Raises:
        NativeMissingError: As of `init_path`.
    """
    return _built("bf-pager")


def identity_library() -> Path:
    """Return bf-identity.so, which keeps the identity of files over a live fork.

    Loaded by `LD_PRELOAD` or `/etc/ld.so.preload` into a dynamic program of either libc, it
    reports one constant `st_dev` for the files of an overlay root, and the `st_ino` that the
    host pinned. It links nothing, allocates nothing and keeps nothing between two calls.

    Raises:
        NativeMissingError: As of `init_path`.
    """
    return _built("bf-identity.so")


def engine_library() -> Path:
    """Return bf-engine.so, which lets CRIU work for a root that lacks CAP_SYS_RESOURCE.

    Loaded by `LD_PRELOAD` into the CRIU program, it reads the limits of other users'
    processes from /proc where the kernel refuses to tell them. What `bf_places` has found in an
    image, it writes into a child's processes before they run. Where CRIU's configuration is a
    socket, it waits there for what to do.

    Raises:
        NativeMissingError: As of `init_path`.
    """
    return _built("bf-engine.so")


def _built(name: str) -> Path:
    path = Path(__file__).parent / "bin" / name
    if not os.access(path, os.X_OK):
        raise NativeMissingError(
            f"nothing that can be executed at {str(path)!r}; "
            "hint: build it with `uv sync --reinstall-package benchflow-sandbox-native` "
            "or `pip install --force-reinstall benchflow-sandbox-native`"
        )
    return path
