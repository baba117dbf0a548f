"""Samples as trajectory groups of ART, with a `Choice` for each message that is trained on.

Source of the format: openpipe-art 0.5.18, `art.TrajectoryGroup`, and openai's `Choice`.
"""

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import Sample, SampleSpan

from .graph import v1_message
from .sample_exporter import Group, Line, SampleExporter
from .sequences import Rendering, TrainedSequence, provenance, trained_sequences

_FINISH_REASONS: Final = {"stop", "length", "tool_calls", "content_filter", "function_call"}


def art_groups() -> SampleExporter:
    """ART trajectory groups, one per line; ART computes the advantages within a group."""
    return SampleExporter("art.jsonl", art_lines, ("inter", "intra"))


def art_lines(group: Group, rendering: Rendering) -> Iterator[Line]:
    """Yield the `TrajectoryGroup` of all trees (`inter`), or of each tree (`intra`).

    A group of one trajectory is left out: its advantage is always 0.
    """
    baselines = [group] if rendering.estimator == "inter" else [[tree] for tree in group]
    for trees in baselines:
        found: dict[tuple[str, str], list[TrainedSequence]] = {}
        for tree in trees:
            # The trainer has an advantage for each leaf, so each recorded token is trained on.
            for each in trained_sequences(tree, Rendering("none", rendering.shared_prefix)):
                found.setdefault((each.sample.tree, each.sample.leaf), []).append(each)
        if len(found) > 1:
            record = trajectory_group(list(found.values()), rendering)
            yield Line(record, tuple(sequences[0].sample for sequences in found.values()))


def trajectory_group(
    leaves: Sequence[Sequence[TrainedSequence]], rendering: Rendering
) -> dict[str, Any]:
    """Return the JSON of a `TrajectoryGroup` with one trajectory per leaf."""
    return {
        "trajectories": [_trajectory(sequences, rendering) for sequences in leaves],
        "exceptions": [],
        "metadata": {
            "group": leaves[0][0].sample.group.id,
            "baseline": "group" if rendering.estimator == "inter" else "tree",
            "shared_prefix": rendering.shared_prefix,
        },
    }


def _trajectory(sequences: Sequence[TrainedSequence], rendering: Rendering) -> dict[str, Any]:
    sample = sequences[0].sample
    histories = [[_message(*pair) for pair in _pairs(sequence)] for sequence in sequences]
    tools = [dict(tool) for tool in sample.tools] or None
    versions = [_number(version) for version in sample.policy_versions]
    return {
        "messages_and_choices": histories[0],
        "tools": tools,
        "additional_histories": [
            {"messages_and_choices": history, "tools": tools} for history in histories[1:]
        ],
        "reward": sample.reward,
        "initial_policy_version": versions[0] if versions else None,
        "final_policy_version": versions[-1] if versions else None,
        "metrics": dict(sample.items),
        "metadata": _metadata(sample, rendering),
        "logs": [],
    }


def _pairs(sequence: TrainedSequence) -> Iterator[tuple[SampleSpan, bool]]:
    return zip(sequence.spans, sequence.trained, strict=True)


def _message(span: SampleSpan, is_trained: bool) -> dict[str, Any]:
    message = _openai_message(span)
    if not is_trained:
        return message
    sampled = span.token_ids[span.scaffold :]
    reason = span.finish_reason
    return {
        "index": 0,
        # A `Choice` must have one of OpenAI's reasons.
        "finish_reason": reason if reason in _FINISH_REASONS else "stop",
        "message": message,
        "logprobs": {
            "content": [
                {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
                for token, value in zip(sampled, span.logprobs, strict=True)
            ],
            "refusal": None,
        },
    }


def _openai_message(span: SampleSpan) -> dict[str, Any]:
    message = v1_message(span.message)
    calls = [
        {
            "id": str(call["id"]),
            "type": "function",
            "function": {"name": str(call["name"]), "arguments": str(call["arguments"])},
        }
        for call in message.pop("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _number(version: str) -> int | None:
    return int(version) if version.isascii() and version.isdecimal() else None


def _metadata(sample: Sample, rendering: Rendering) -> dict[str, Any]:
    """Return the provenance as scalars: ART allows nothing else."""
    marks = provenance(sample, rendering)
    marks["baseline"] = "group" if marks.pop("advantage") == "inter" else "tree"
    scalars = (bool, int, float, str, type(None))
    return {k: v if isinstance(v, scalars) else json.dumps(v) for k, v in marks.items()}


def read_art_groups(path: Path) -> list[Any]:
    """Return the `art.TrajectoryGroup` objects of a file. Needs the package `openpipe-art`.

    ART's own models read a `Choice` from JSON as a plain message, which is not trained on.
    """
    art: Any = importlib.import_module("art")
    choice: Any = importlib.import_module("openai.types.chat.chat_completion").Choice

    def history(items: list[dict[str, Any]]) -> list[Any]:
        return [choice(**item) if "finish_reason" in item else item for item in items]

    def trajectory(record: dict[str, Any]) -> object:
        more = cast("list[dict[str, Any]]", record["additional_histories"])
        extra = [
            art.trajectories.History(
                messages_and_choices=history(each["messages_and_choices"]), tools=each["tools"]
            )
            for each in more
        ]
        messages = history(record["messages_and_choices"])
        fields = {**record, "messages_and_choices": messages, "additional_histories": extra}
        return art.Trajectory(**fields)

    groups = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        art.TrajectoryGroup(map(trajectory, group["trajectories"]), metadata=group["metadata"])
        for group in groups
    ]
