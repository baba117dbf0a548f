"""The output of a sandbox's services, in the record of a rollout."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchflow_contracts import Sandbox, SandboxError, SupportsServices
from benchflow_contracts.redaction import redactor

_MAX_BYTES: Final = 1 << 20


async def write_service_logs(sandbox: Sandbox, directory: Path) -> None:
    """Write the end of each service's output to `NAME.txt` in `directory`.

    The file of a service that no longer answers stays as it is.
    """
    if not isinstance(sandbox, SupportsServices):
        return
    for service in sandbox.spec.services:
        with suppress(SandboxError):
            output = await sandbox.service_logs(service.name, max_bytes=_MAX_BYTES)
            await asyncio.to_thread(_write, directory / f"{service.name}.txt", output)


def _write(path: Path, output: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(redactor().data(output))
