"""A training sample: the tokens on the way to one leaf of a rollout tree, and what they earned.

Every format for a trainer renders samples. A sample holds what the tree and its recorded model
calls say, and nothing else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from ._model import RareModel
from .gateway import RoutedExperts, SamplingMask
from .tree import Fidelity, Weighting
from .verdict import Grading, Integrity, RewardEvent

SpanKind = Literal["prompt", "user", "sampled", "replayed"]
"""`sampled`: the model of this rollout generated the message. `replayed`: the message comes from
a recorded call. `user`: the user's words. `prompt`: everything else that the model read."""

AdvantageEstimator = Literal["intra", "inter", "intra+inter", "process", "none"]
"""`intra`, `inter` and `process` are those of `Credit`; `intra+inter` is their sum, as in
Tree-GRPO."""

SharedPrefix = Literal["once", "per_leaf"]
"""How often a rendering trains on the tokens that several leaves of a tree have. `per_leaf`: once
with the advantage of each leaf, as in Tree-GRPO. `once`: with the mean advantage of these leaves,
in the first of them."""

AnswerSource = Literal["user", "counterfactual", "unknown"]
"""Who gave the answers on the way to a leaf. `counterfactual`: the task's user never gives one of
them. `unknown`: the user was not asked."""


class SampleGroup(RareModel):
    """Samples whose returns are a baseline for each other."""

    task_id: str
    task_digest: str
    job: str | None = None
    """The job that ran the rollouts, if one did."""
    policy_version: str | None = None
    """The weights that answered the first call of the agent."""

    @property
    def id(self) -> str:
        """One text for all fields."""
        prompt = f"{self.task_id}@{self.task_digest}"
        return f"{prompt}#{self.job or '-'}/{self.policy_version or '-'}"


class SampleSpan(RareModel):
    """One message, with the tokens that it adds to the messages before it."""

    id: str
    """Unique in the tree. Leaves share the spans of their common steps."""
    parent: str | None
    """The span before this one; `None` where a sequence of tokens begins."""
    node: str
    """The node of the tree whose step has the message."""
    kind: SpanKind
    message: Mapping[str, Any]
    """In OpenAI's chat format."""
    start: int = Field(ge=0)
    """The number of tokens before the span in its sequence."""
    token_ids: tuple[int, ...] = ()
    scaffold: int = Field(default=0, ge=0)
    """The number of `token_ids` before the sampled tokens."""
    logprobs: tuple[float, ...] = ()
    """One for each sampled token, or none: then the tokens must not be trained on."""
    call: str | None = None
    """The id of the model call that sampled the message."""
    policy_version: str | None = None
    """The weights that sampled the message, as the upstream reports them."""
    end_policy_version: str | None = None
    """The weights at the end of the call, if they changed during the call."""
    trains_mixed: bool = False
    """Whether the tokens may be trained on although the weights changed during the call; see
    `TrainingOptions.mixed_calls`."""
    routed_experts: RoutedExperts | None = None
    """One row for each of `token_ids`, if the upstream sent them."""
    sampling_mask: SamplingMask | None = None
    """One row for each sampled token, if the upstream sent it."""
    finish_reason: str | None = None
    temperature: float | None = None
    finished_at: float
    """Seconds since the epoch."""

    @property
    def end(self) -> int:
        """The number of tokens of the sequence after the span."""
        return self.start + len(self.token_ids)

    @property
    def is_mixed(self) -> bool:
        """Whether the weights changed while the message was sampled."""
        return self.end_policy_version not in (None, self.policy_version)

    @property
    def is_trainable(self) -> bool:
        """Whether each sampled token has a log-probability, and this rollout sampled them.

        A mixed message is not trained on, unless the options allow it.
        """
        may_train = self.trains_mixed or not self.is_mixed
        return self.kind == "sampled" and bool(self.logprobs) and may_train

    @property
    def mask(self) -> list[bool]:
        """For each of `token_ids`, whether a trainer may train on it."""
        n = len(self.token_ids)
        untrained = min(self.scaffold, n) if self.is_trainable else n
        return [False] * untrained + [True] * (n - untrained)


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Tokens that one model call saw and said, token for token."""

    spans: tuple[SampleSpan, ...]
    advantages: tuple[float | None, ...]
    """One for each span."""

    @property
    def token_ids(self) -> list[int]:
        """The prompt, and all messages after it."""
        return [token for span in self.spans for token in span.token_ids]

    @property
    def loss_mask(self) -> list[bool]:
        """For each token, whether a trainer may train on it."""
        return [flag for span in self.spans for flag in span.mask]

    @property
    def logprobs(self) -> list[float | None]:
        """For each token its log-probability, or `None` if the model did not sample it."""
        return [each for span in self.spans for each in _per_token(span, span.logprobs)]

    @property
    def routed_experts(self) -> list[list[list[int]]] | None:
        """For each token the experts of each layer; `None` if they are not known for all tokens."""
        spans = [span for span in self.spans if span.token_ids]
        known = [span.routed_experts for span in spans]
        if not known or None in known:
            return None
        return [row for each in known if each is not None for row in each.tolist()]

    @property
    def token_advantages(self) -> list[float | None]:
        """For each token its advantage; `None` for a token that is not trained on."""
        return [
            each
            for span, advantage in zip(self.spans, self.advantages, strict=True)
            for each in _per_token(span, (advantage,) * len(span.logprobs))
        ]


def _per_token(span: SampleSpan, values: tuple[float | None, ...]) -> list[float | None]:
    if not span.is_trainable:
        return [None] * len(span.token_ids)
    return [*([None] * span.scaffold), *values]


class Sample(RareModel):
    """One scored leaf, with everything that a trainer needs to learn from it."""

    task_id: str
    task_digest: str
    instruction: str
    agent: str
    model: str | None = None
    group: SampleGroup
    tree: str
    """The id of the rollout."""
    leaf: str
    nodes: tuple[str, ...]
    """The nodes from the root to the leaf."""
    branch: tuple[str, ...] = ()
    """The labels of the branches taken, from the root."""
    spans: tuple[SampleSpan, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """The tools that the model was offered, in OpenAI's chat format."""
    sampling: Mapping[str, Any] = {}
    """The sampling parameters of the last call."""
    reward: float = Field(allow_inf_nan=False)
    items: Mapping[str, float] = {}
    events: tuple[RewardEvent, ...] = ()
    advantages: Mapping[AdvantageEstimator, tuple[float | None, ...]] = {}
    """For each estimator one number for each span."""
    values: Mapping[str, float] = {}
    """V of the nodes that were valued, by node."""
    weighting: Weighting = "uniform"
    """How values and advantages weight the answers at forks."""
    answer: AnswerSource = "user"
    answer_weight: float | None = Field(default=1.0, ge=0, le=1)
    """The probability that the task's user gives the answers on the way to the leaf."""
    is_truncated: bool = False
    """Whether a limit on tokens or requests ended the agent's last turn."""
    stop_condition: str | None = None
    """Why the last turn ended, in ACP's words."""
    fidelity: Fidelity | None = None
    """The worst fidelity of the forks on the way; `None` without a fork."""
    grading: Grading
    integrity: Integrity | None = None
    breaks: int = Field(default=0, ge=0)
    """The number of calls whose prompt did not begin with the tokens before it."""
    repeated_tokens: int = Field(default=0, ge=0)
    """The tokens before a break that the prompt after it has again."""
    missing_logprobs: int = Field(default=0, ge=0)
    """The number of model messages without log-probabilities."""
    store_generation: int | None = None
    """The version of the learner's store that the rollout began with, in a sequential job."""
    timing: Mapping[str, float] = {}
    """Seconds since the epoch: `start`, `ready`, `end` and `scored`, where known."""
    imported_from: str | None = None
    """The format that the rollout was imported from; such a sample is not on-policy data."""
    evidence: Mapping[str, str] = {}
    """The sha256 of the files that the sample was made from, by their path in the rollout."""

    @property
    def policy_versions(self) -> tuple[str, ...]:
        """The weights that sampled the messages, in the order of their first use."""
        sampled = (span for span in self.spans if span.kind == "sampled")
        versions = (v for s in sampled for v in (s.policy_version, s.end_policy_version))
        return tuple(dict.fromkeys(version for version in versions if version is not None))

    @property
    def mixed_calls(self) -> int:
        """The number of messages whose weights changed while they were sampled."""
        return sum(span.is_mixed for span in self.spans if span.kind == "sampled")

    @property
    def has_sampling_masks(self) -> bool:
        """Whether the upstream said for a message which tokens it sampled from."""
        return any(span.sampling_mask is not None for span in self.spans)

    def with_options(self, options: "TrainingOptions") -> "Sample":
        """Return the sample with the tokens that `options` allow to train on."""
        if not self.mixed_calls or options.mixed_calls == "mask":
            return self
        spans = tuple(span.model_copy(update={"trains_mixed": True}) for span in self.spans)
        return self.model_copy(update={"spans": spans})

    def sequences(self, estimator: AdvantageEstimator = "none") -> Iterator[TokenSequence]:
        """Yield the sequences of tokens: one, and one more after each break.

        Only the first one has the messages before the first break; no token is trained on twice.
        """
        marks = self.advantages.get(estimator) or (None,) * len(self.spans)
        begins = [at for at, span in enumerate(self.spans) if span.parent is None]
        for begin, end in zip(begins, [*begins[1:], len(self.spans)], strict=True):
            yield TokenSequence(self.spans[begin:end], marks[begin:end])


class TrainingOptions(RareModel):
    """What an export for a trainer contains."""

    advantage: AdvantageEstimator | None = None
    """Advantage of each sampled token in a format with tokens: intra, inter, intra+inter, process
    or none. Default: that of the format."""
    shared_prefix: SharedPrefix | None = None
    """How often the tokens that several leaves share are trained on: once, with the mean advantage
    of these leaves, or per_leaf. Default: once for a graph, per_leaf otherwise."""
    truncated: Literal["mask", "train"] = "mask"
    """Whether a leaf that a limit on tokens or requests ended is trained on. A format that marks
    these leaves always has them."""
    mixed_versions: Literal["mask", "train"] = "train"
    """Whether a leaf that several versions of the weights sampled is trained on."""
    mixed_calls: Literal["mask", "train"] = "mask"
    """Whether a message is trained on whose weights changed while it was sampled."""
    counterfactual: bool = False
    """Also export the leaves below answers that the task's user does not give."""
    imported: Literal["refuse", "train"] = "refuse"
    """Whether rollouts that BenchFlow did not run are exported. They are never on-policy data."""
    require_tokens: bool = False
    """Refuse a sample if the tokens or log-probabilities of a model message were not recorded, or
    if a prompt does not begin with the tokens before it."""
