"""The JSON of a job of Harbor: values that every reader accepts, in ASCII."""

import json
from pathlib import Path
from typing import Final

from benchflow_contracts.plain_json import PlainJson

_PLAIN: Final = PlainJson()
plain_text = _PLAIN.text
plain = _PLAIN.value


def write_json(path: Path, data: object) -> None:
    """Write JSON in ASCII, so that printing the file cannot send codes to a terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, allow_nan=False, indent=2)
    path.write_text(text + "\n", encoding="ascii")
