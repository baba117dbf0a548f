"""The model calls that a gateway recorded for a rollout."""

from pathlib import Path
from typing import Final

from benchflow_contracts import ModelCall
from benchflow_gateway import read_calls

MODEL_DIR: Final = "model"
"""Below a rollout's directory: one file of recorded calls per node."""


def read_model_calls(directory: Path) -> dict[str, ModelCall]:
    """Return the calls of the rollout in `directory` by id; empty without a gateway.

    Raises:
        StoreError: A recorded call is damaged or cannot be read.
    """
    files = sorted((directory / MODEL_DIR).rglob("*.jsonl"))
    return {call.id: call for path in files for call in read_calls(path)}
