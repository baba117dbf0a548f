"""`job.json` as version 0.8 wrote it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_old_plan(
    directory: Path, slots: Mapping[str, str], run: Mapping[str, Any] | None = None
) -> None:
    """Write the plan of `slots`, each with the digest of its task."""
    plan = {"schema_version": "1.0", "slots": dict(slots), "run": dict(run or {})}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "job.json").write_text(json.dumps(plan, indent=2))
