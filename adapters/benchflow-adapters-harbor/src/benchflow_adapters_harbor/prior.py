"""`trajectory.json`: what an agent is said to have done before the task began."""

import json
from pathlib import Path
from typing import cast

from benchflow_contracts import TaskError

from .files import read_text

MAX_BYTES = 32 * 1024 * 1024


def check_prior(root: Path, file: Path) -> Path:
    """Return `file` when it looks like an ATIF document; whoever loads it reads it fully.

    Raises:
        TaskError: It is no JSON object, of no ATIF version or without steps.
    """
    try:
        data: object = json.loads(read_text(root, file, cap=MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise TaskError(
            f"not JSON: {error}", where=str(file), hint="remove or repair it"
        ) from error
    document = cast("dict[str, object]", data) if isinstance(data, dict) else {}
    version = document.get("schema_version", "")
    if not (isinstance(version, str) and version.startswith("ATIF-v1.")):
        raise TaskError(
            "no ATIF document of version 1", where=f"{file}:schema_version", hint="see ATIF"
        )
    if not (isinstance(steps := document.get("steps"), list) and steps):
        raise TaskError("has no steps", where=f"{file}:steps", hint="remove the file")
    return file
