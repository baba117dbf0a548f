"""The model calls that a gateway recorded for a rollout."""

from pathlib import Path

from benchflow_contracts import ModelCall, StoreError
from pydantic import ValidationError

MODEL_DIR = "model"
"""Below a rollout's directory; one file per node, one JSON line per call."""


def read_model_calls(directory: Path) -> dict[str, ModelCall]:
    """Return the calls of the rollout in `directory`, by id; none without a gateway.

    A torn last line is left out: a call is recorded before it is answered, so nobody has
    built on it.

    Raises:
        StoreError: A line is no recorded call.
    """
    calls: dict[str, ModelCall] = {}
    for path in sorted((directory / MODEL_DIR).rglob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
            try:
                call = ModelCall.model_validate_json(line)
            except ValidationError as error:
                raise StoreError("not a recorded model call", where=f"{path}:{number}") from error
            calls[call.id] = call
    return calls
