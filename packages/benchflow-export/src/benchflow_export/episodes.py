"""Samples as a Verifiers v1 episode: one trace per leaf, or one for the whole tree.

Source of the format: verifiers 0.4.0, `Episode`, `Trace` and `ModelCall` (trace version 1).
In `tests/e2e/test_traces.py`, that package reads our traces.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, cast

from benchflow_contracts import AdvantageEstimator, ModelCall, Sample, SampleSpan, SharedPrefix

from .advantages import mean_advantages
from .graph import v1_message
from .samples import sampling_of
from .token_rows import version_range

Shape = Literal["leaves", "graph"]

DEFAULT_ESTIMATOR: Final[Mapping[Shape, AdvantageEstimator]] = {
    "leaves": "intra",
    "graph": "process",
}
SHARED_PREFIX: Final[Mapping[Shape, SharedPrefix]] = {"leaves": "per_leaf", "graph": "once"}
_FINISH_REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}
_LIMITS = {"max_tokens": "max_output_tokens", "max_turn_requests": "max_turns"}
"""The stop conditions by which a reader knows that a trace was truncated."""
_TRACE_VERSION = 1
_WRITER = "0.4.0"


def episode(
    samples: Sequence[Sample],
    calls: Mapping[str, ModelCall],
    shape: Shape = "leaves",
    estimator: AdvantageEstimator | None = None,
) -> dict[str, Any] | None:
    """Return one line of `traces.jsonl` for the samples of one tree; `None` without samples.

    `leaves`: one trace per sample, with the leaf's return. The agent is called `leaf`, so a
    trainer's hierarchical baseline over the episode is the intra-tree one. Shared prefixes are
    repeated with the same tokens. `graph`: one trace with every message once, the mean return as
    its reward, and the leaves' returns in `info.benchflow`.

    `group.id` is that of `Sample.group`. `estimator` chooses the advantages of the sampled tokens:
    by default `intra` for `leaves` and `process` for `graph`. In a graph, a message has the mean
    advantage of the leaves below it, by the weight of their answers.
    """
    if not samples:
        return None
    estimator = estimator or DEFAULT_ESTIMATOR[shape]
    first = samples[0]
    if shape == "leaves":
        traces = [_leaf_trace(sample, calls, estimator) for sample in samples]
    else:
        traces = [_graph_trace(samples, calls, estimator)]
    return {
        "id": first.tree,
        "env": {"id": "benchflow"},
        "task": _task(first),
        "group": {"id": first.group.id},
        "ok": True,
        "traces": traces,
    }


def _leaf_trace(
    sample: Sample, calls: Mapping[str, ModelCall], estimator: AdvantageEstimator
) -> dict[str, Any]:
    advantages = sample.advantages.get(estimator) or (None,) * len(sample.spans)
    info = {
        "leaf": sample.leaf,
        "branch": list(sample.branch),
        "answer": sample.answer,
        "answer_weight": sample.answer_weight,
        "integrity": sample.integrity,
        "fidelity": sample.fidelity,
        "is_truncated": sample.is_truncated,
        "shared_prefix": SHARED_PREFIX["leaves"],
    }
    trace = _trace([sample], sample.spans, advantages, calls, estimator, info)
    return {**trace, "rewards": {"reward": {"score": sample.reward, "weight": 1.0}}}


def _graph_trace(
    samples: Sequence[Sample], calls: Mapping[str, ModelCall], estimator: AdvantageEstimator
) -> dict[str, Any]:
    spans: dict[str, SampleSpan] = {}
    for sample in samples:
        spans |= {span.id: span for span in sample.spans}
    parents = {
        node: parent
        for sample in samples
        for parent, node in zip(sample.nodes, sample.nodes[1:], strict=False)
    }
    values = {node: value for sample in samples for node, value in sample.values.items()}
    info = {
        "leaves": {sample.leaf: sample.reward for sample in samples},
        "answer_weights": {sample.leaf: sample.answer_weight for sample in samples},
        "integrity": {sample.leaf: sample.integrity for sample in samples},
        "fidelity": {sample.leaf: sample.fidelity for sample in samples},
        "truncated": [sample.leaf for sample in samples if sample.is_truncated],
        "values": values,
        "parents": parents,
        "shared_prefix": SHARED_PREFIX["graph"],
    }
    advantages = mean_advantages(samples, spans, estimator)
    trace = _trace(samples, list(spans.values()), advantages, calls, estimator, info)
    root = values.get(samples[0].nodes[0])
    score = sum(s.reward for s in samples) / len(samples) if root is None else root
    return {**trace, "rewards": {"reward": {"score": score, "weight": 1.0}}}


def _trace(
    samples: Sequence[Sample],
    spans: Sequence[SampleSpan],
    advantages: Sequence[float | None],
    calls: Mapping[str, ModelCall],
    estimator: AdvantageEstimator,
    info: Mapping[str, Any],
) -> dict[str, Any]:
    first = samples[0]
    name = "leaf" if "leaf" in info else "graph"
    index = {span.id: at for at, span in enumerate(spans)}
    versions = list(dict.fromkeys(v for sample in samples for v in sample.policy_versions))
    weightings = {sample.weighting for sample in samples}
    return {
        "version": _TRACE_VERSION,
        "id": f"{first.tree}-{first.leaf if name == 'leaf' else name}",
        "verifiers": {"version": _WRITER},
        "task": _task(first),
        "agent": {
            "config": {"harness": {"id": first.agent}, "model": first.model},
            "name": name,
            "trainable": any(span.is_trainable for span in spans),
        },
        "tools": list(map(_tool, first.tools)),
        "nodes": [
            _node(span, index, advantage) for span, advantage in zip(spans, advantages, strict=True)
        ],
        "calls": list(_calls(spans, calls)),
        "metrics": dict(first.items) if name == "leaf" else {},
        "info": {
            "benchflow": {
                **info,
                "rollout_id": first.tree,
                "sources": [span.node for span in spans],
                "advantage": estimator,
                "weighting": "answers" if "answers" in weightings else "uniform",
                "policy_versions": versions,
                "policy_version_range": version_range(versions),
                "node_policy_versions": [span.policy_version for span in spans],
                **_changes(spans),
                "breaks": sum(sample.breaks for sample in samples),
                "repeated_tokens": sum(sample.repeated_tokens for sample in samples),
                "missing_logprobs": sum(
                    span.kind == "sampled" and not span.logprobs for span in spans
                ),
                "store_generation": first.store_generation,
                **({"imported_from": first.imported_from} if first.imported_from else {}),
                "evidence": dict(first.evidence),
            }
        },
        "is_completed": True,
        "stop_condition": _stop_condition(first) if name == "leaf" else None,
        "timing": _timing(samples),
        "ok": True,
    }


def _changes(spans: Sequence[SampleSpan]) -> dict[str, Any]:
    """Return new weights of mixed messages, experts and sampling masks, by node, if there are."""
    found: dict[str, Any] = {}
    if any(span.is_mixed for span in spans):
        found["node_end_policy_versions"] = [span.end_policy_version for span in spans]
    if any(span.routed_experts is not None for span in spans):
        experts = [span.routed_experts for span in spans]
        found["node_routed_experts"] = [
            None if each is None else each.model_dump(mode="json") for each in experts
        ]
    if any(span.sampling_mask is not None for span in spans):
        masks = [span.sampling_mask for span in spans]
        found["node_sampling_masks"] = [None if m is None else m.tolist() for m in masks]
    return found


def _node(span: SampleSpan, index: Mapping[str, int], advantage: float | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "parent": None if span.parent is None else index[span.parent],
        "message": v1_message(span.message),
        "sampled": span.kind in ("sampled", "replayed"),
        "timestamp": span.finished_at,
        "token_ids": list(span.token_ids),
        "mask": span.mask,
        # One for each token of the mask: verifiers has no place for others.
        "logprobs": list(span.logprobs) if span.is_trainable else [],
    }
    if span.is_trainable and advantage is not None:
        fields["advantages"] = [advantage] * len(span.logprobs)
    return fields


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function: object = tool.get("function")
    is_dict = isinstance(function, dict)
    fields: Mapping[str, Any] = cast("Mapping[str, Any]", function) if is_dict else {}
    parameters: Any = fields.get("parameters")
    return {
        "name": str(fields.get("name", "")),
        "description": str(fields.get("description") or ""),
        "parameters": cast("dict[str, Any]", parameters) if isinstance(parameters, dict) else {},
    }


def _calls(spans: Sequence[SampleSpan], calls: Mapping[str, ModelCall]) -> Iterator[dict[str, Any]]:
    for at, span in enumerate(spans):
        call = None if span.call is None else calls.get(span.call)
        if call is not None:
            cached = call.usage.cached_tokens
            yield {
                "node": at,
                "model": call.model,
                "endpoint": "/chat/completions",
                "finish_reason": _FINISH_REASONS.get(span.finish_reason or ""),
                "sampling": sampling_of(call),
                "usage": {
                    "prompt_tokens": call.usage.input_tokens - cached,
                    "completion_tokens": call.usage.output_tokens,
                    "cached_input_tokens": cached,
                },
                "time": {"start": call.started_at, "end": call.finished_at},
            }


def _task(sample: Sample) -> dict[str, Any]:
    return {
        "type": "BenchFlowTask",
        "data": {"id": sample.task_id, "prompt": sample.instruction},
        "key": sample.task_id,
        "hash": sample.task_digest,
    }


def _stop_condition(sample: Sample) -> str | None:
    if sample.is_truncated:
        return _LIMITS.get(sample.stop_condition or "", "max_output_tokens")
    return sample.stop_condition


def _timing(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the spans that are known; 0 is unknown."""
    times = [sample.timing for sample in samples]
    begin = min((each["start"] for each in times if "start" in each), default=0.0)
    ready = min((each["ready"] for each in times if "ready" in each), default=0.0)
    end = max((each["end"] for each in times if "end" in each), default=0.0)
    scored = max((each["scored"] for each in times if "scored" in each), default=0.0)
    return {
        "start": begin,
        "setup": {"start": begin, "end": ready},
        "agent": {"start": ready, "end": end},
        "scoring": {"start": end if scored else 0.0, "end": scored},
    }
