"""Rows of the Agent Data Protocol (ADP): a trajectory as actions and observations, for SFT.

Source of the format: github.com/neulab/agent-data-protocol, `schema/trajectory.py`, version 1.3.0:
the first version in which an observation names the tool call that it answers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from .formats import RowExporter
from .messages import Message

SCHEMA_VERSION: Final = "1.3.0"
_DETAILS: Final = (
    "task_id",
    "rollout_id",
    "leaf",
    "branch",
    "model",
    "environment",
    "group",
    "answer",
    "answer_weight",
    "policy_versions",
    "advantage",
)


def adp_rows() -> RowExporter:
    """Agent Data Protocol rows (1.3.0), one line per scored leaf, for SFT."""
    return RowExporter("adp.jsonl", "openai", convert=adp_row)


def adp_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trainer record with OpenAI tool calls as an ADP `Trajectory`.

    The last action has the reward of the trajectory. A tool call without a result gets an empty
    observation, because ADP needs one; `details.unanswered_tool_calls` counts them.
    """
    info: Mapping[str, Any] = record["info"]
    content = _Content()
    for message in (*record["prompt"], *record["completion"]):
        content.add(message)
    content.close_calls()
    actions = [item for item in content.items if item["class_"].endswith("_action")]
    if actions:
        actions[-1]["reward"] = record["reward"]
    return {
        "schema_version": SCHEMA_VERSION,
        "id": f"{info['rollout_id']}-{info['leaf']}",
        "content": content.items,
        "details": {
            "dataset": "benchflow",
            **{key: info[key] for key in _DETAILS},
            "reward": record["reward"],
            "integrity": info["reward_metadata"]["integrity"],
            "is_truncated": record["is_truncated"],
            "stop_condition": record["stop_condition"],
            "shared_prefix": "per_leaf",
            "unanswered_tool_calls": content.unanswered,
        },
    }


class _Content:
    """The actions and observations of a trajectory. Each tool call has exactly one observation."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.unanswered = 0
        self._calls = 0
        self._open: list[tuple[str, str]] = []
        """The ids of calls without a result: the agent's, which need not be unique, and ours."""

    def add(self, message: Message) -> None:
        """Add one chat message."""
        if message["role"] == "tool":
            self._add_result(message)
            return
        self.close_calls()
        if message["role"] == "assistant":
            self.items.extend(self._actions(message))
        else:
            source = "user" if message["role"] == "user" else "environment"
            self.items.append(_observation(message["content"], source))

    def close_calls(self) -> None:
        """Give each open call an empty observation."""
        for _, ident in self._open:
            self.items.append(_observation("", "environment", ident))
        self.unanswered += len(self._open)
        self._open.clear()

    def _add_result(self, message: Message) -> None:
        match = next((pair for pair in self._open if pair[0] == message["tool_call_id"]), None)
        if match is not None:
            self._open.remove(match)
        ident = None if match is None else match[1]
        self.items.append(_observation(message["content"], "environment", ident))

    def _actions(self, message: Message) -> Iterator[dict[str, Any]]:
        calls: Iterable[dict[str, Any]] = message.get("tool_calls") or ()
        said = message.get("content") or ""
        thought = {"reasoning_content": message.get("reasoning_content") or None}
        if not calls:
            yield {"class_": "message_action", "content": said, **thought}
        for at, call in enumerate(calls):
            self._calls += 1
            ident = f"call_{self._calls:06d}"
            self._open.append((call["id"], ident))
            yield {
                "class_": "api_action",
                "tool_call_id": ident,
                "function": call["function"]["name"],
                "kwargs": _kwargs(call["function"]["arguments"]),
                **({"description": said or None, **thought} if at == 0 else {}),
            }


def _observation(content: str, source: str, tool_call_id: str | None = None) -> dict[str, Any]:
    link = {} if tool_call_id is None else {"tool_call_id": tool_call_id}
    return {"class_": "text_observation", "content": content, "source": source, **link}


def _kwargs(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call as an object; as text if they are not plain JSON."""
    try:
        value = json.loads(arguments, parse_constant=_refuse)
        json.dumps(value)
    except (ValueError, RecursionError):
        return {"arguments": arguments}
    is_object = isinstance(value, dict)
    return cast("dict[str, Any]", value) if is_object else {"arguments": arguments}


def _refuse(constant: str) -> None:
    raise ValueError(constant)
