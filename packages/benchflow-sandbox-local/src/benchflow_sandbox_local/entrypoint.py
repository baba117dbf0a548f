"""What runs in a box from its start.

It has no stream of the host's: one would tie the box to it, and the box could not be forked.
"""

import os

from benchflow_sandbox_core.command import Command
from benchflow_sandbox_core.entrypoint import ended, settle

from .body import Body
from .box.paths import open_strict

_MAX_BYTES = 4096


async def start(machine: Body, command: Command) -> int:
    """Start it, and return its number inside.

    Raises:
        SandboxError: It cannot be started.
    """
    null = open_strict(machine.root, "dev/null", os.O_RDWR)
    try:
        return await command.start(machine, (null, null, null))
    finally:
        os.close(null)


async def start_image(machine: Body, command: Command) -> None:
    """Start the image's own, and return when it has settled.

    Raises:
        SandboxError: It cannot be started, or it ended.
    """

    async def command_line(pid: int) -> bytes:
        return _command_line(machine.root, pid)

    code = await settle(machine, await start(machine, command), command_line)
    if code is not None:
        raise ended(command, code, "what it prints is kept by the docker sandbox alone")


def _command_line(root: int, pid: int) -> bytes:
    try:
        fd = open_strict(root, f"proc/{pid}/cmdline", os.O_RDONLY)
    except OSError:
        return b""  # it ended, or the box has a kernel of its own
    with os.fdopen(fd, "rb") as file:
        return file.read(_MAX_BYTES)
