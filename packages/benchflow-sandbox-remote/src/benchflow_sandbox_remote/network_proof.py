"""The proof that sandboxes without a network do not have one."""

import asyncio

from benchflow_contracts.errors import AccountError, HostError, SandboxError
from benchflow_contracts.sandbox import NetworkMode, SandboxCapabilities
from benchflow_sandbox_native import link_path

from .cloud import CloudSandbox
from .transport import PROGRAM

_TRIES = 5


async def prove_closed(opened: CloudSandbox, closed: CloudSandbox, address: str) -> str | None:
    """Return why `closed` may have a network; `None`: it is proven that it does not.

    `address` is a host and a port as words of a shell inside. `opened`, a sandbox like the other
    one but with a network, must reach it. So a failure of the other one is the cloud's work.

    Raises:
        SandboxError: A sandbox cannot be reached, so nothing is known.
    """
    for each in (opened, closed):
        await each.put(PROGRAM, link_path().read_bytes(), 0o755)
    if not await _ends_with(0, opened, address):
        return f"a sandbox with a network cannot reach {address}, so nothing is proven"
    for _ in range(_TRIES):
        if await _ends_with(3, closed, address):
            return None
        await asyncio.sleep(1)  # a cloud may close the network after the start
    return f"a sandbox that should have no network reaches {address}"


def with_open_network(can: SandboxCapabilities, reason: str) -> SandboxCapabilities:
    """Return capabilities with the network `public` alone. `reason` is the note of the others."""
    notes = dict.fromkeys(can.network_modes - {"public"}, reason)
    networks = frozenset[NetworkMode]({"public"})
    return can.model_copy(update={"network_modes": networks, "notes": {**can.notes, **notes}})


async def _ends_with(code: int, sandbox: CloudSandbox, address: str) -> bool:
    try:
        await sandbox.run(["/bin/sh", "-c", f"{PROGRAM} reach {address}; test $? = {code}"])
    except (HostError, AccountError):
        raise  # not the end of the command
    except SandboxError:
        return False
    return True
