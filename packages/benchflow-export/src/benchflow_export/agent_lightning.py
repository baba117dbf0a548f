"""Samples as rollouts of Agent Lightning: one span per model call, and one span for the reward.

Source of the format: agentlightning 0.3.0, `agentlightning.types.Span`; its adapter
`TracerTraceToTriplet` reads the attributes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow_contracts import Sample, SampleSpan

from .sample_exporter import Group, Line, SampleExporter
from .sequences import Rendering, TrainedSequence, provenance, trained_sequences

CALL_SPAN: Final = "openai.chat.completion"
REWARD_SPAN: Final = "agentlightning.annotation"


def agent_lightning_rollouts() -> SampleExporter:
    """Agent Lightning rollouts, one line per scored leaf, with a span for each model call."""
    return SampleExporter("agent-lightning.jsonl", rollout_lines, ("none",))


def rollout_lines(group: Group, rendering: Rendering) -> Iterator[Line]:
    """Yield one line per leaf: `rollout_id`, `attempt_id`, `input`, `metadata` and `spans`.

    The trainer computes the advantages: it compares the rollouts of one input.
    """
    for tree in group:
        by_leaf: dict[str, list[TrainedSequence]] = {}
        for sequence in trained_sequences(tree, rendering):
            by_leaf.setdefault(sequence.sample.leaf, []).append(sequence)
        for sequences in by_leaf.values():
            sample = sequences[0].sample
            yield Line(_rollout(sample, sequences, rendering), (sample,))


def _rollout(
    sample: Sample, sequences: list[TrainedSequence], rendering: Rendering
) -> dict[str, Any]:
    rollout_id = f"{sample.tree}-{sample.leaf}"
    calls = [call for sequence in sequences for call in _calls(sequence)]
    finished = max(
        [span.finished_at for span in sample.spans] + [sample.timing.get("scored", 0.0)], default=0
    )
    events = [(CALL_SPAN, attributes, span.finished_at) for span, attributes in calls]
    events.append((REWARD_SPAN, _reward(sample), finished))
    return {
        "rollout_id": rollout_id,
        "attempt_id": "0",
        "input": {"task_id": sample.task_id, "instruction": sample.instruction},
        "metadata": provenance(sample, rendering),
        "spans": [
            _span(rollout_id, number, name, attributes, at)
            for number, (name, attributes, at) in enumerate(events, 1)
        ],
    }


def _calls(sequence: TrainedSequence) -> Iterator[tuple[SampleSpan, dict[str, Any]]]:
    tokens = sequence.token_ids
    for span, is_trained in zip(sequence.spans, sequence.trained, strict=True):
        if is_trained:
            # The first token of a sequence is at the start of its first span.
            at = span.start - sequence.spans[0].start + span.scaffold
            yield span, _call(sequence.sample, span, tokens[:at])


def _call(sample: Sample, span: SampleSpan, prompt: list[int]) -> dict[str, Any]:
    sampled = span.token_ids[span.scaffold :]
    # The form of vLLM's `return_tokens_as_token_ids`: the text of one token is not recorded.
    logprobs: list[dict[str, Any]] = [
        {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
        for token, value in zip(sampled, span.logprobs, strict=True)
    ]
    known = {
        "gen_ai.request.model": sample.model,
        "gen_ai.request.temperature": span.temperature,
        "gen_ai.response.finish_reason": span.finish_reason,
        "benchflow.policy_version": span.policy_version,
    }
    return {
        "gen_ai.response.id": f"{sample.tree}/{span.id}",
        **{key: value for key, value in known.items() if value is not None},
        "prompt_token_ids": prompt,
        "response_token_ids": list(sampled),
        "logprobs.content": json.dumps(logprobs),
    }


def _reward(sample: Sample) -> dict[str, Any]:
    """Return the reward, then its items. The first reward is the primary one."""
    rewards = [("primary", sample.reward), *sample.items.items()]
    return {
        f"agentlightning.reward.{at}.{key}": value
        for at, (name, score) in enumerate(rewards)
        for key, value in (("name", name), ("value", float(score)))
    }


def _span(
    rollout_id: str, number: int, name: str, attributes: Mapping[str, Any], at: float
) -> dict[str, Any]:
    trace_id, span_id = _hex(rollout_id, 32), _hex(f"{rollout_id}/{number}", 16)
    return {
        "rollout_id": rollout_id,
        "attempt_id": "0",
        "sequence_id": number,
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": None,
        "name": name,
        "status": {"status_code": "OK", "description": None},
        "attributes": dict(attributes),
        "events": [],
        "links": [],
        # A sample has the end of the step that a call belongs to, and not the call's own times.
        "start_time": at,
        "end_time": at,
        "context": {
            "trace_id": trace_id,
            "span_id": span_id,
            "is_remote": False,
            "trace_state": {},
        },
        "parent": None,
        "resource": {"attributes": {"service.name": "benchflow"}, "schema_url": ""},
    }


def _hex(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:digits]
