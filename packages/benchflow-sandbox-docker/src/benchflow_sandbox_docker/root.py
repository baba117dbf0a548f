"""The root directory of a container that runs, as this host sees it."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from benchflow_contracts.cause import host_is_short, refuse_shortage
from benchflow_contracts.errors import SandboxUnsupportedError

from .engine import Engine


@asynccontextmanager
async def root_of(engine: Engine, container: str) -> AsyncGenerator[int]:
    """Keep the root directory of a container open for the block.

    Raises:
        SandboxUnsupportedError: The engine does not run on this host, or this process may not
            look into its containers.
        HostError: The host could not look.
    """
    told = cast("dict[str, Any]", await engine.do("inspect_container", container))
    root = _open_root(int(told["State"]["Pid"]), str(told["Id"]))
    try:
        yield root
    finally:
        os.close(root)


def _open_root(pid: int, container: str) -> int:
    process, root = Path("/proc", str(pid)), -1
    try:
        root = os.open(process / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # A number that was given to another process since would lead elsewhere.
        if container in (process / "cgroup").read_text():
            return root
        why = f"process {pid} is not the container's"
    except OSError as error:
        if root >= 0 and host_is_short(error):
            os.close(root)
        refuse_shortage("open the root of a container", error)
        why = str(error)
    if root >= 0:
        os.close(root)
    raise SandboxUnsupportedError(
        f"the files that a container opens cannot be observed from this host: {why}",
        hint="run as root beside the engine",
    )
