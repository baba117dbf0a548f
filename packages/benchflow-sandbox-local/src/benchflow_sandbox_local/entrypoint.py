"""The entrypoint of a sandbox.

It has no stream of the host: a sandbox with such a stream could not be forked.
"""

import os
import stat

from benchflow_contracts.cause import refuse_shortage
from benchflow_sandbox_core.command import SandboxCommand
from benchflow_sandbox_core.entrypoint import exit_error, wait_until_settled

from benchflow_sandbox_local.launcher_process.paths import open_strict

from .running_box import LocalRunningBox

_MAX_BYTES = 65536


async def start(running: LocalRunningBox, command: SandboxCommand) -> int:
    """Start the entrypoint and return its process id inside.

    Raises:
        SandboxError: The entrypoint cannot be started.
    """
    null = open_strict(running.root, "dev/null", os.O_RDWR)
    try:
        return await command.start(running, (null, null, null))
    finally:
        os.close(null)


async def start_image(running: LocalRunningBox, command: SandboxCommand) -> None:
    """Start the image's entrypoint, and return when it has done its work.

    Raises:
        SandboxError: The entrypoint cannot be started, or has ended.
    """

    async def show(path: str) -> bytes:
        return read_start(running.root, path)

    code = await wait_until_settled(running, await start(running, command), show)
    if code is not None:
        raise exit_error(command, code, "only the docker sandbox keeps its output")


def read_start(root: int, path: str) -> bytes:
    """Return the first bytes of a file of the sandbox; `b""` when the file cannot be read.

    Raises:
        HostError: The host could not open the file.
    """
    try:
        fd = open_strict(root, path.lstrip("/"), os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)  # `fdopen` refuses a directory
            return b""
        with os.fdopen(fd, "rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        refuse_shortage("look at the entrypoint of a sandbox", error)
        # The file does not exist, its process ended, or the sandbox has a kernel of its own.
        return b""
