"""The training samples of a rollout: one for each scored leaf. See `benchflow_contracts.sample`."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from benchflow_contracts import (
    AdvantageEstimator,
    Credit,
    Event,
    Fidelity,
    FinishedRollout,
    ModelCall,
    NodeScored,
    PhaseEntered,
    RolloutNode,
    Sample,
    SampleGroup,
    SampleSpan,
    SpanKind,
    Weighting,
)
from benchflow_kernel import answer_weights, credit_of, values_below

from .graph import GraphNode, MessageGraph, chat_choice, chat_request, message_graph
from .trainer import TRUNCATED, answer_of, group_of

_WORST_FIRST: Final[tuple[Fidelity, ...]] = ("replay", "state", "live")
_EVIDENCE: Final = ("events.jsonl", "config.json")
_SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def samples_of(rollout: FinishedRollout) -> list[Sample]:
    """Return one sample for each scored leaf. A leaf whose verdict does not count has none.

    The advantages are `intra`, `process` and `none`. `inter` needs the other rollouts of the
    group: see `inter_advantages` of benchflow-kernel.
    """
    tree = rollout.tree
    graph = message_graph(tree.root, rollout.calls, instruction=rollout.instruction)
    view = _TreeView(
        rollout=rollout,
        graph=graph,
        credit=credit_of(tree),
        weights=answer_weights(tree),
        values={key: v.mean for key, v in values_below(tree.root).items() if v is not None},
        group=group_of(rollout),
        evidence=_evidence(rollout),
    )
    return [view.sample(leaf) for leaf in tree.leaves if leaf.reward is not None]


@dataclass(frozen=True, slots=True)
class _TreeView:
    """What the samples of one tree share."""

    rollout: FinishedRollout
    graph: MessageGraph
    credit: Mapping[str, Credit]
    weights: Mapping[str, float | None]
    values: Mapping[str, float]
    group: SampleGroup
    evidence: Mapping[str, str]
    spans: dict[str, SampleSpan] = field(default_factory=dict[str, SampleSpan])
    """By id: the leaves share the spans of their common steps."""

    def sample(self, leaf: RolloutNode) -> Sample:
        assert leaf.reward is not None
        rollout, path, verdict = self.rollout, leaf.path, leaf.results["reward"].counted()
        nodes = self.graph.along(path)
        calls = [node.call for node in nodes if node.call is not None]
        weight, credit = self.weights[leaf.id], self.credit.get(leaf.id)
        stop = next((step.stop_reason for step in reversed(leaf.steps) if step.stop_reason), None)
        spans = tuple(map(self._span, nodes))
        return Sample(
            task_id=rollout.tree.task_id,
            task_digest=rollout.task_digest,
            instruction=rollout.instruction,
            agent=rollout.agent,
            model=rollout.model,
            group=self.group,
            tree=rollout.tree.rollout_id,
            leaf=leaf.id,
            nodes=tuple(node.id for node in path),
            branch=tuple(node.label for node in path if node.label is not None),
            spans=spans,
            tools=_tools(calls),
            sampling=sampling_of(calls[-1]) if calls else {},
            reward=leaf.reward,
            items=verdict.items,
            events=verdict.events,
            advantages=self._advantages(leaf, nodes),
            values={node.id: self.values[node.id] for node in path if node.id in self.values},
            weighting="uniform" if credit is None else self._weighting(path),
            answer=answer_of(weight),
            answer_weight=weight,
            is_truncated=stop in TRUNCATED or _ended_by_length(spans),
            stop_condition=stop,
            fidelity=_fidelity(path),
            grading=verdict.grading,
            integrity=verdict.integrity,
            breaks=sum(node.is_break for node in nodes),
            repeated_tokens=sum(node.repeated for node in nodes),
            missing_logprobs=sum(node.sampled and not node.logprobs for node in nodes),
            store_generation=rollout.store_generation,
            imported_from=rollout.imported_from,
            timing=_timing(rollout.events, leaf),
            evidence=self.evidence,
        )

    def _span(self, node: GraphNode) -> SampleSpan:
        if node.id not in self.spans:
            self.spans[node.id] = _span(node)
        return self.spans[node.id]

    def _advantages(
        self, leaf: RolloutNode, nodes: Sequence[GraphNode]
    ) -> dict[AdvantageEstimator, tuple[float | None, ...]]:
        own = self.credit.get(leaf.id)
        intra = None if own is None else own.intra
        process = [self.credit.get(node.source) for node in nodes]
        return {
            "intra": (intra,) * len(nodes),
            "process": tuple(None if each is None else each.process for each in process),
        }

    def _weighting(self, path: Sequence[RolloutNode]) -> Weighting:
        weightings = [self.credit[node.id].weighting for node in path if node.id in self.credit]
        return "answers" if "answers" in weightings else "uniform"


def _span(node: GraphNode) -> SampleSpan:
    call = node.call
    request: Mapping[str, Any] = {} if call is None else chat_request(call)
    temperature: object = request.get("temperature")
    reason: object = None if call is None else chat_choice(call).get("finish_reason")
    return SampleSpan(
        id=node.id,
        parent=None if node.parent is None else node.parent.id,
        node=node.source,
        kind=_kind(node),
        message=node.message,
        start=node.start,
        token_ids=node.tokens,
        scaffold=node.scaffold,
        logprobs=node.logprobs,
        call=None if call is None else call.id,
        policy_version=None if call is None else call.policy_version,
        end_policy_version=None if call is None else call.end_policy_version,
        routed_experts=node.experts,
        sampling_mask=None if call is None or not node.tokens else call.sampling_mask,
        finish_reason=reason if isinstance(reason, str) else None,
        temperature=temperature if isinstance(temperature, int | float) else None,
        finished_at=node.timestamp,
    )


def _kind(node: GraphNode) -> SpanKind:
    if node.sampled:
        return "replayed" if node.call is not None and node.call.replayed else "sampled"
    return "user" if node.message.get("role") == "user" else "prompt"


def _ended_by_length(spans: Sequence[SampleSpan]) -> bool:
    last = next((span for span in reversed(spans) if span.call is not None), None)
    return last is not None and last.finish_reason == "length"


def _tools(calls: Sequence[ModelCall]) -> tuple[Mapping[str, Any], ...]:
    for call in reversed(calls):
        tools: object = chat_request(call).get("tools")
        if isinstance(tools, list):
            items = cast("list[object]", tools)
            return tuple(
                cast("Mapping[str, Any]", item) for item in items if isinstance(item, dict)
            )
    return ()


def sampling_of(call: ModelCall) -> dict[str, Any]:
    """Return the sampling parameters that the request of a chat call names."""
    request = chat_request(call)
    return {key: request[key] for key in _SAMPLING if request.get(key) is not None}


def _fidelity(path: Iterable[RolloutNode]) -> Fidelity | None:
    forks = [
        node.branch.fidelity for node in path if node.branch is not None and node.branch.children
    ]
    return next((fidelity for fidelity in _WORST_FIRST if fidelity in forks), None)


def _timing(events: Sequence[Event], leaf: RolloutNode) -> dict[str, float]:
    path = {node.id for node in leaf.path}
    phases = [e for e in events if isinstance(e, PhaseEntered) and e.node in path]
    steps = leaf.steps
    times = {
        "start": phases[0].ts if phases else None,
        "ready": next((e.ts for e in phases if e.phase == "execute"), None),
        "end": steps[-1].finished_at if steps else None,
        "scored": next(
            (
                e.ts
                for e in events
                if isinstance(e, NodeScored) and (e.node, e.name) == (leaf.id, "reward")
            ),
            None,
        ),
    }
    return {key: value for key, value in times.items() if value is not None}


def _evidence(rollout: FinishedRollout) -> dict[str, str]:
    if rollout.directory is None:
        return {}
    digests: dict[str, str] = {}
    for name in _EVIDENCE:
        path = rollout.directory / name
        if path.is_file():
            with path.open("rb") as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests
