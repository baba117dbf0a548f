"""What a world writes down inside its sandbox, for worlds that are forked from it."""

import json
from collections.abc import Sequence

from benchflow_contracts import Model, StateSnapshot
from pydantic import ValidationError

from .box import Box
from .state import ROOT

_PATH = f"{ROOT}/world.json"
_WRITE = 'umask 077; mkdir -p "${1%/*}" && printf %s "$2" > "$1.new" && mv "$1.new" "$1"'


class WorldRecord(Model):
    """Lies where only root can read or write, so a fork may believe it."""

    missing: tuple[str, ...] = ()
    """Names of the services that this image does not have."""
    tools: tuple[str, ...] = ()
    """What `Box.tools` found."""
    baseline: StateSnapshot | None = None


async def write_record(box: Box, missing: Sequence[str], baseline: StateSnapshot | None) -> None:
    """Write down what a fork need not find out again."""
    tools = tuple(sorted(await box.tools()))
    record = WorldRecord(missing=tuple(missing), tools=tools, baseline=baseline)
    command = ["sh", "-c", _WRITE, "sh", _PATH, record.model_dump_json()]
    await box.must(command, what="writing down the world")


async def read_record(box: Box) -> WorldRecord | None:
    """Return what the parent wrote down, `None` when it was no world of ours."""
    found = await box.run(["cat", _PATH])
    if not found.ok:
        return None
    try:
        return WorldRecord.model_validate(json.loads(found.stdout))
    except (ValueError, ValidationError, RecursionError):
        return None
