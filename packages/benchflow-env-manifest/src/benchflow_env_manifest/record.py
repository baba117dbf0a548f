"""Write and read the record of a world inside its sandbox, for its forks."""

import json
from collections.abc import Sequence

from benchflow_contracts import Model, StateSnapshot, TransferError
from benchflow_contracts.scratch import scratch_directory
from pydantic import ValidationError

from .sandbox_shell import SandboxShell
from .state import ROOT

_PATH = f"{ROOT}/world.json"
_MAX_BYTES = 1 << 20
_WRITE = 'umask 077; mkdir -p "${1%/*}" && printf %s "$2" > "$1.new" && mv "$1.new" "$1"'


class WorldRecord(Model):
    """Results that a fork can reuse. Only root can read or write the file, so it is trusted."""

    missing: tuple[str, ...] = ()
    """Names of the services that are missing in the image."""
    tools: tuple[str, ...] = ()
    """The result of `SandboxShell.tools`."""
    who: str | None = None
    """The value of `SandboxShell.agent_ids`."""
    baseline: StateSnapshot | None = None


async def write_record(
    shell: SandboxShell, missing: Sequence[str], baseline: StateSnapshot | None
) -> None:
    """Save results that a fork can reuse."""
    tools = tuple(sorted(await shell.tools()))
    record = WorldRecord(
        missing=tuple(missing), tools=tools, who=shell.agent_ids, baseline=baseline
    )
    command = ["sh", "-c", _WRITE, "sh", _PATH, record.model_dump_json()]
    await shell.must(command, what="saving the world's record")


async def read_record(shell: SandboxShell) -> WorldRecord | None:
    """Return the record of the parent, or `None` if there is none."""
    with scratch_directory("world") as folder:
        local = folder / "world.json"
        try:
            await shell.sandbox.download(_PATH, local, max_bytes=_MAX_BYTES)
            return WorldRecord.model_validate(json.loads(local.read_bytes()))
        except (TransferError, ValueError, ValidationError, RecursionError):
            return None
