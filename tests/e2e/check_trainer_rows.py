"""Judge trainer files by the package that defines the format: verifiers 0.3.1.

Runs in an environment of its own: `python check_trainer_rows.py ROWS.jsonl... --sft SFT.jsonl`.
Ends with an AssertionError, or prints a JSON object of what it saw.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter
from verifiers.legacy.types import (
    AssistantMessage,
    Message,
    RolloutOutput,
    RolloutTiming,
    State,
    ToolCall,
)
from verifiers.legacy.utils.metric_utils import ErrorRateMetric, RewardMetric
from verifiers.legacy.utils.save_utils import (
    load_outputs,
    make_dataset,
    make_serializable,
    state_to_output,
)

MESSAGES = TypeAdapter(list[Message])
OPENAI = TypeAdapter(list[ChatCompletionMessageParam])
OPTIONAL = {"answer", "info", "error", "stop_condition", "trajectory", "tool_defs", "token_usage"}


def live_messages(rendered: list[dict[str, Any]]) -> list[Any]:
    """Return the message objects that a run of the package would have held."""
    calls = [
        {**m, "tool_calls": [ToolCall.model_validate_json(c) for c in m["tool_calls"]]}
        if "tool_calls" in m
        else m
        for m in rendered
    ]
    messages = MESSAGES.validate_python(calls)
    assert [m.role for m in messages] == [m["role"] for m in rendered]
    return messages


def check_types(row: RolloutOutput) -> None:
    required = set(RolloutOutput.__annotations__) - OPTIONAL
    assert required <= set(row), required - set(row)
    kinds = {"example_id": int, "reward": float, "is_completed": bool, "is_truncated": bool}
    assert {k: type(row[k]) for k in kinds} == kinds
    assert row["metrics"]
    assert all(type(value) is float for value in row["metrics"].values())
    assert {k: row[k] for k in row["metrics"]} == row["metrics"]
    timing = row["timing"]
    spans = (timing["setup"], timing["generation"], timing["scoring"])
    assert all(span["duration"] > 0 for span in spans), timing
    assert timing["start_time"] <= timing["setup"]["start"] == timing["generation"]["start"]
    assert timing["setup"]["end"] <= timing["generation"]["end"] <= timing["scoring"]["end"]


def check_calls(messages: list[Any]) -> int:
    """Return how many tool calls there are; each result answers one that came before it."""
    seen: set[str] = set()
    for message in messages:
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls or ():
                assert isinstance(json.loads(call.arguments), dict), call
                seen.add(call.id)
        if message.role == "tool":
            assert message.tool_call_id in seen, message
    return len(seen)


def written_by_the_package(row: RolloutOutput) -> str:
    """Return the line that verifiers writes for the same rollout."""
    state = State(
        **{k: row[k] for k in ("example_id", "info", "reward", "metrics", "stop_condition")},
        **{k: row[k] for k in ("is_completed", "is_truncated", "tool_defs", "error")},
        prompt=live_messages(row["prompt"]),
        completion=live_messages(row["completion"]),
        timing=RolloutTiming.model_validate(row["timing"]),
    )
    return json.dumps(state_to_output(state), default=make_serializable)


def in_floats(line: str) -> str:
    """Spell integers as floats: the package's empty sum of a float field is `0`, ours `0.0`."""
    return json.dumps(json.loads(line, parse_int=float))


def check_file(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="ascii").split("\n")[:-1]
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(path, Path(directory) / "results.jsonl")
        rows = load_outputs(Path(directory))
    assert len(rows) == len(lines) > 0
    check_dataset(rows)
    for row, line in zip(rows, lines, strict=True):
        check_types(row)
        assert in_floats(line) == in_floats(written_by_the_package(row))
        calls = check_calls(live_messages(row["prompt"] + row["completion"]))
        yield {"reward": row["reward"], "calls": calls, "environment": row["info"]["environment"]}
    rewards, errors = RewardMetric(), ErrorRateMetric()
    rewards.add_outputs(rows)
    errors.add_outputs(rows)
    assert rewards.compute() == sum(row["reward"] for row in rows) / len(rows)
    assert errors.compute() == 0


def check_dataset(rows: list[RolloutOutput]) -> None:
    dataset = make_dataset({"outputs": rows, "metadata": {}})
    assert set(RolloutOutput.__annotations__) - OPTIONAL <= set(dataset.column_names)
    with tempfile.TemporaryDirectory() as directory:
        parquet = Path(directory) / "rows.parquet"
        dataset.to_parquet(parquet)
        again = Dataset.from_parquet(str(parquet), cache_dir=directory)
    assert again["example_id"] == [row["example_id"] for row in rows]
    assert again["reward"] == [row["reward"] for row in rows]


def check_sft(path: Path) -> int:
    """Return how many tool calls an SFT reader finds after the data set's loader."""
    calls = 0
    with tempfile.TemporaryDirectory() as cache:
        rows = list(load_dataset("json", data_files=str(path), split="train", cache_dir=cache))
    for row in rows:
        messages = [
            {k: v for k, v in message.items() if v is not None}
            for message in row["prompt"] + row["completion"]
        ]
        # prime-rl masks by role and gives the arguments to the chat template as an object.
        assert {m["role"] for m in messages} <= {"system", "user", "assistant", "tool"}
        OPENAI.validate_python(messages)
        for message in messages:
            for call in message.get("tool_calls", ()):
                assert set(call) == {"id", "type", "function"}
                assert set(call["function"]) == {"name", "arguments"}
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                calls += 1
    return calls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--sft", type=Path, required=True)
    args = parser.parse_args()
    rows = {path.name: list(check_file(path)) for path in args.rows}
    print(json.dumps({"rows": rows, "sft_calls": check_sft(args.sft)}))


if __name__ == "__main__":
    main()
