"""The seal of a record, which proves that a run of this user wrote the record.

A rollout that resumes from a record runs code that the record names. The seal protects it.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchflow_contracts.seal import Seal

_SEAL = "seal"
_SORTED: Final = json.JSONEncoder(sort_keys=True)


def seal_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with this user's seal. The seal is empty if no secret can be stored."""
    code = ""
    with suppress(OSError, RuntimeError):
        code = _secret().of(_text(config))
    return {**config, _SEAL: code}


def has_own_seal(config: Mapping[str, Any]) -> bool:
    """Return whether a run of this user wrote `config`, and nobody has changed it since."""
    with suppress(OSError, RuntimeError):
        return _secret().fits(_text(config), str(config.get(_SEAL)))
    return False


def _secret() -> Seal:
    return _seal_in(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"))  # noqa: PTH111


@cache
def _seal_in(state: str) -> Seal:
    return Seal(Path(state, "benchflow", "record-seal"))


def _text(config: Mapping[str, Any]) -> str:
    content = {key: value for key, value in config.items() if key != _SEAL}
    return _SORTED.encode(content)
