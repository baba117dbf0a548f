"""`config.json`: what a rollout was run with, sealed, because going on from it runs it again."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchflow_contracts.seal import Seal

_SEAL = "seal"


def sealed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with this user's seal; with an empty one where no secret can be kept."""
    code = ""
    with suppress(OSError, RuntimeError):
        code = _secret().of(_text(config))
    return {**config, _SEAL: code}


def is_ours(config: Mapping[str, Any]) -> bool:
    """Return whether this user's runs wrote `config`, and it is as it was then."""
    with suppress(OSError, RuntimeError):
        return _secret().fits(_text(config), str(config.get(_SEAL)))
    return False


def _secret() -> Seal:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Seal(Path(state) / "benchflow" / "record-seal")


def _text(config: Mapping[str, Any]) -> str:
    told = {key: value for key, value in config.items() if key != _SEAL}
    return json.dumps(told, sort_keys=True)
