"""Samples as data of Tinker: one `Datum` for the loss `importance_sampling` per token sequence.

Source of the format: tinker 0.38.0, `Datum`, `ModelInput` and `TensorData`.
"""

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from .sample_exporter import Group, Line, SampleExporter
from .sequences import Rendering, TrainedSequence, provenance, trained_sequences


def tinker_data() -> SampleExporter:
    """Tinker data, one line per token sequence, with the advantage of each sampled token."""
    return SampleExporter(
        "tinker.jsonl", tinker_lines, ("intra+inter", "intra", "inter", "process")
    )


def tinker_lines(group: Group, rendering: Rendering) -> Iterator[Line]:
    """Yield one line per sequence of the group: `datum`, and `benchflow`, its provenance."""
    for tree in group:
        for sequence in trained_sequences(tree, rendering):
            # The model cannot be trained on its first token: it predicts the next one.
            if any(sequence.mask[1:]):
                marks = provenance(sequence.sample, rendering)
                yield Line({"datum": datum(sequence), "benchflow": marks}, (sequence.sample,))


def datum(sequence: TrainedSequence) -> dict[str, Any]:
    """Return the JSON of a `Datum`.

    All its tensors have one number for each target token, and the targets are the tokens after the
    first one. A token that is not trained on has the advantage 0 and the log-probability 0.
    """
    tokens = sequence.token_ids
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]},
        "loss_fn_inputs": {
            "target_tokens": _tensor(tokens[1:], "int64"),
            "logprobs": _tensor(sequence.logprobs(0.0)[1:], "float32"),
            "advantages": _tensor(sequence.advantages()[1:], "float32"),
        },
    }


def _tensor(data: Sequence[float], dtype: Literal["int64", "float32"]) -> dict[str, Any]:
    return {"data": list(data), "dtype": dtype, "shape": [len(data)]}


def read_tinker_data(path: Path) -> list[Any]:
    """Return the `tinker.Datum` objects of a file. Needs the package `tinker`."""
    tinker: Any = importlib.import_module("tinker")
    data: list[Any] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)["datum"]
        (chunk,) = record["model_input"]["chunks"]
        inputs = record["loss_fn_inputs"].items()
        data.append(
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(chunk["tokens"]),
                loss_fn_inputs={key: tinker.TensorData(**value) for key, value in inputs},
            )
        )
    return data
