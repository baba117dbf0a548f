"""Read compose files as sandboxes: `read_compose.py FILE...`. Print each configuration or error."""

import json
import sys

from benchflow_adapters_inspect.sandbox.settings import BenchflowSandboxConfig
from benchflow_contracts import UsageError


def facts(path: str) -> dict[str, object]:
    """Return the settings that a file changes, or its error."""
    try:
        return BenchflowSandboxConfig.of(path).model_dump(exclude_defaults=True)
    except UsageError as error:
        return {"error": str(error)}


print(json.dumps([facts(path) for path in sys.argv[1:]]))
