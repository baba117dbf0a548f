"""What the services beside a box printed, in the record of a rollout."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchflow_contracts import Sandbox, SandboxError, SupportsServices
from benchflow_contracts.redaction import redactor

_MAX_BYTES: Final = 1 << 20


async def keep_service_logs(sandbox: Sandbox, directory: Path) -> None:
    """Write the last of what each service printed to `NAME.txt` in `directory`.

    One that can no longer be asked keeps what was written of it before.
    """
    if not isinstance(sandbox, SupportsServices):
        return
    for service in sandbox.spec.services:
        with suppress(SandboxError):
            said = await sandbox.service_logs(service.name, max_bytes=_MAX_BYTES)
            await asyncio.to_thread(_write, directory / f"{service.name}.txt", said)


def _write(path: Path, said: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(redactor().data(said))
