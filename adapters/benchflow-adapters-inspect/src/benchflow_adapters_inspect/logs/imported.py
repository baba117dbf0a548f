"""Samples of a log as finished rollouts."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import (
    FinishedRollout,
    NodeError,
    Observation,
    RolloutNode,
    RolloutTree,
    Step,
    ToolCall,
    Usage,
    VerifyResult,
)

from benchflow_adapters_inspect.tasks.sample_folder import slug

from .branches import BranchReader
from .log_file import Json, LogFile

_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_MOST_TOKENS = 2**40


def import_log(path: Path) -> Iterator[FinishedRollout]:
    """Yield a rollout for each sample and epoch, with one node for each message of the model.

    Branches of a sample's timeline are branches of its tree. In a log of BenchFlow the first epoch
    of a rollout has the whole tree, so its other leaves are not rollouts of their own. The first
    score is the result `reward`; the others have the names of their scorers. A score that is not a
    number is unscored. The trees have no recorded model calls and no log-probabilities, and
    `meta["imported"]` names the log, so they are never on-policy data.

    Raises:
        StoreError: The file is not a log of Inspect, or is damaged.
        UsageError: The file needs the package `zstandard`.
    """
    log = LogFile(path)
    spec = cast("Json", log.header["eval"])
    trees: set[tuple[str, object]] = set()
    for row in log.samples():
        sample = _Sample(path, spec, log.header, row)
        key = str(row.get("id", "")), sample.tree_epoch
        if key in trees and sample.tree_epoch != row.get("epoch"):
            continue
        rollout = sample.rollout()
        if sample.has_branches:
            trees.add((str(row.get("id", "")), row.get("epoch")))
        yield rollout


class _Sample:
    """Reads one sample. A value of a wrong type counts as missing."""

    def __init__(self, path: Path, spec: Json, header: Json, sample: Json) -> None:
        self._path = path
        self._spec = spec
        self._sample = sample
        self._attachments = _mapping(sample.get("attachments"))
        self._version = header.get("version")
        self._calls = self._model_events()
        ours = _mapping(_mapping(sample.get("metadata")).get("benchflow"))
        number = ours.get("tree_epoch")
        self.tree_epoch = number if isinstance(number, int) else None
        """The epoch that has the whole tree, in a log of BenchFlow."""
        self.has_branches = False

    def rollout(self) -> FinishedRollout:
        sample_id, epoch = str(self._sample.get("id", "")), self._sample.get("epoch", 1)
        rollout_id = re.sub(
            r"[^A-Za-z0-9._-]+", "-", f"{self._spec.get('eval_id', 'eval')}-{sample_id}-{epoch}"
        )
        root = RolloutNode(id="n0")
        nodes, node = dict[str, RolloutNode](), root
        for number, step in enumerate(self._steps(), 1):
            child = RolloutNode(id=f"n{number}", parent=node, step=step)
            node.children.append(child)
            nodes[step.id] = node = child
        reader = BranchReader(nodes, root, self._branch_step, _result, self._blank)
        reader.read([_mapping(each) for each in _list(self._sample.get("events"))])
        self.has_branches = bool(reader.added)
        if node.children:
            # The last fork is after the last message.
            tip = RolloutNode(id="tip", parent=node, step=self._blank("tip"))
            node.children.insert(0, tip)
            node = tip
        node.results.update(self._results())
        node.error = self._error()
        lost = reader.dropped
        index = {each.id: each for each in root.subtree}
        scored = any(leaf.results for leaf in root.leaves)
        facts = {"format": "inspect", "log": self._path.name, "epoch": epoch}
        meta = {"imported": {**facts, **({"lost_branches": lost} if lost else {})}}
        tree = RolloutTree(
            rollout_id=rollout_id,
            task_id=f"{slug(str(self._spec.get('task', 'task')))}/{slug(sample_id)}",
            root=root,
            index=index,
            status="completed" if scored else "ungraded",
            meta=meta,
        )
        return FinishedRollout(
            tree=tree,
            task_digest="",
            instruction=self._input(),
            agent=str(self._spec.get("solver") or "inspect"),
            model=str(self._spec.get("model") or "") or None,
            sandbox="",
            finished_at=_time(self._sample.get("completed_at")),
            task_format="inspect",
        )

    def _input(self) -> str:
        given = self._sample.get("input")
        if isinstance(given, str):
            return self._text(given)
        texts = [self._content(_mapping(each).get("content"))[0] for each in _list(given)]
        return "\n\n".join(texts)

    def _steps(self) -> Iterator[Step]:
        prompt: list[str] = []
        draft: dict[str, Any] | None = None
        for message in map(_mapping, _list(self._sample.get("messages"))):
            role, (text, reasoning) = message.get("role"), self._content(message.get("content"))
            if role == "tool" and draft is not None:
                draft["observations"].append(self._observation(message, text))
            elif role == "assistant":
                if draft is not None:
                    yield Step.model_validate(draft)
                draft = self._draft(message, text, reasoning, "\n\n".join(prompt))
                prompt = []
            elif role in {"user", "system"}:
                prompt.append(text)
        if draft is not None:
            yield Step.model_validate({**draft, "stop_reason": "end_turn"})

    def _draft(self, message: Json, text: str, reasoning: str, prompt: str) -> dict[str, Any]:
        call = self._calls.get(str(message.get("id")), {})
        started = _time(call.get("timestamp") or self._sample.get("started_at"))
        return {
            "id": str(message.get("id") or "message"),
            "prompt": prompt or None,
            "message": text,
            "reasoning": reasoning,
            "tool_calls": tuple(
                self._tool_call(_mapping(each)) for each in _list(message.get("tool_calls"))
            ),
            "observations": [],
            "usage": _usage(_mapping(_mapping(call.get("output")).get("usage"))),
            "started_at": started,
            "finished_at": max(started, _time(call.get("completed") or call.get("timestamp"))),
        }

    def _branch_step(self, event: Json) -> Step:
        choices = _list(_mapping(event.get("output")).get("choices"))
        message = _mapping(_mapping(choices[0]).get("message")) if choices else {}
        text, reasoning = self._content(message.get("content"))
        return Step.model_validate(self._draft(message, text, reasoning, ""))

    def _blank(self, ident: str) -> Step:
        """Return the step of a node without an answer: only a node with a step can be recorded."""
        at = _time(self._sample.get("completed_at"))
        return Step(id=ident, started_at=at, finished_at=at)

    def _tool_call(self, call: Json) -> ToolCall:
        name = str(call.get("function") or "tool")
        arguments = call.get("arguments")
        return ToolCall(id=str(call.get("id")), title=name, name=name, raw_input=arguments)

    def _observation(self, message: Json, text: str) -> Observation:
        error = _mapping(message.get("error"))
        return Observation(
            tool_call_id=str(message.get("tool_call_id")),
            status="failed" if error else "completed",
            content=text or str(error.get("message") or ""),
        )

    def _content(self, content: object) -> tuple[str, str]:
        """Return the text and the reasoning of a message."""
        if isinstance(content, str):
            return self._text(content), ""
        parts = [_mapping(each) for each in _list(content)]
        text = [str(part.get("text") or "") for part in parts if part.get("type") == "text"]
        kinds = [part for part in parts if part.get("type") == "reasoning"]
        reasoning = [str(part.get("reasoning") or "") for part in kinds]
        return self._text("\n".join(text)), self._text("\n".join(reasoning))

    def _text(self, text: str) -> str:
        """Return a text, from the attachments if it is a reference to one."""
        key = text.removeprefix("attachment://")
        found = self._attachments.get(key) if key != text else None
        return found if isinstance(found, str) else text

    def _model_events(self) -> dict[str, Json]:
        """Return the model events by the id of their message."""
        found: dict[str, Json] = {}
        for event in map(_mapping, _list(self._sample.get("events"))):
            if event.get("event") == "model":
                choices = _list(_mapping(event.get("output")).get("choices"))
                message = _mapping(_mapping(choices[0]).get("message")) if choices else {}
                found[str(message.get("id"))] = event
        return found

    def _results(self) -> dict[str, VerifyResult]:
        scores = _mapping(self._sample.get("scores"))
        results: dict[str, VerifyResult] = {}
        for name, score in scores.items():
            results["reward" if not results else str(name)] = _result(str(name), _mapping(score))
        return results

    def _error(self) -> NodeError | None:
        error = _mapping(self._sample.get("error"))
        if not error:
            return None
        message = str(error.get("message") or "the sample failed")
        return NodeError(boundary="inspect", type="EvalError", message=message)


def _result(name: str, score: Json) -> VerifyResult:
    value, meta = score.get("value"), {"imported_from": name}
    items: dict[str, float] = {}
    if isinstance(value, Mapping):
        numbers = {str(k): _number(v) for k, v in cast("Mapping[object, object]", value).items()}
        items = {key: number for key, number in numbers.items() if number is not None}
        value = next(iter(items.values()), None)
    number = _number(value)
    if number is None:
        return VerifyResult.unscored(f"the score {name!r} of the log is not a number")
    return VerifyResult(reward=number, items=items, meta=meta)


def _number(value: object) -> float | None:
    if isinstance(value, bool | int | float) and abs(value) < 1e50 and isfinite(value):
        return float(value)
    return _WORDS.get(value) if isinstance(value, str) else None


def _usage(usage: Json) -> Usage | None:
    if not usage:
        return None
    cached = _tokens(usage.get("input_tokens_cache_read"))
    written = _tokens(usage.get("input_tokens_cache_write"))
    return Usage(
        input_tokens=_tokens(usage.get("input_tokens")) + cached + written,
        output_tokens=_tokens(usage.get("output_tokens")),
        cached_tokens=cached,
    )


def _tokens(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _MOST_TOKENS else 0


def _time(value: object) -> float:
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _mapping(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return [*value] if isinstance(value, list) else []
