"""Rollouts with something that a trainer must not learn from silently, beside good leaves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchflow_contracts import (
    BranchRecord,
    FinishedRollout,
    ModelCall,
    RolloutNode,
    RolloutTree,
    Step,
    Usage,
    VerifyResult,
)

TEXT, TOKEN = "the-hazard", 471390
PREFIX = [1, 2, 3]
SYSTEM = {"role": "system", "content": "You work."}
USER = {"role": "user", "content": "Do it."}
HELLO = {"role": "assistant", "content": "hello"}

Trained = tuple[tuple[int, ...], int]
"""The tokens before a token that is trained on, and this token."""


def call(
    ident: str, says: str, prompt: list[int] | None, tokens: list[int], **more: Any
) -> ModelCall:
    """A recorded call; by default after `hello` and a turn of the user."""
    fields = {
        "id": ident,
        "node": "n",
        "api": "openai-chat",
        "request": {"messages": [SYSTEM, USER, HELLO, {"role": "user", "content": ident}]},
        "response": {"choices": [{"message": {"role": "assistant", "content": says}}]},
        "status": 200,
        "policy_version": "v1",
        "prompt_token_ids": prompt,
        "completion_token_ids": tokens,
        "logprobs": [-0.5] * len(tokens),
        "usage": Usage(),
        "started_at": 1,
        "finished_at": 2,
    }
    return ModelCall(**{**fields, **more})


def leaf(ident: str, says: str, reward: float | None, *calls: str, **more: Any) -> RolloutNode:
    step = Step(id=ident, message=says, model_calls=calls, started_at=0, finished_at=1, **more)
    node = RolloutNode(id=ident, step=step, label=ident)
    if reward is not None:
        node.results["reward"] = VerifyResult(reward=reward)
    return node


def rollout(
    bad: RolloutNode | None, *calls: ModelCall, answers: dict[str, float] | None = None
) -> FinishedRollout:
    """A first step, then the leaves `win` and `lose`, and perhaps `bad`."""
    opening = call("c1", "hello", PREFIX, [4, 5], request={"messages": [SYSTEM, USER]})
    good = [call("c2", "win", [*PREFIX, 4, 5, 6], [7]), call("c3", "lose", [*PREFIX, 4, 5, 8], [9])]
    root = RolloutNode(id="n0")
    first = RolloutNode(
        id="n1",
        parent=root,
        step=Step(id="s1", message="hello", model_calls=("c1",), started_at=0, finished_at=1),
    )
    first.children = [leaf("win", "win", 1.0, "c2"), leaf("lose", "lose", 0.0, "c3")]
    if bad is not None:
        first.children.append(bad)
    for child in first.children:
        child.parent = first
    root.children = [first]
    if answers is not None:
        first.branch = BranchRecord(
            policy="ask-user", fidelity="live", reason="", children=3, answers=answers
        )
    index = {node.id: node for node in root.subtree}
    tree = RolloutTree("r", "task", root, index, status="completed")
    return FinishedRollout(
        tree=tree,
        task_digest="d",
        instruction="Do it.",
        agent="policy",
        model="m",
        sandbox="local",
        finished_at=2,
        calls={each.id: each for each in (opening, *good, *calls)},
    )


@dataclass(frozen=True)
class Hazard:
    """A rollout with something that must not be trained on silently."""

    make: Callable[[], FinishedRollout]
    count: str = ""
    """The field of the counts that must report it."""
    may_train: tuple[str, ...] = ()
    """Calls with a token that may be trained on, beside those of the good leaves."""
    is_marked: bool = False
    """Whether a format may have the leaf, if the counts report it."""


CONTEXT = [*PREFIX, 4, 5, 10]


def bad_call(**more: Any) -> ModelCall:
    return call("bad", TEXT, more.pop("prompt", CONTEXT), [TOKEN], **more)


def unscored() -> FinishedRollout:
    return rollout(leaf("bad", TEXT, None, "bad"), bad_call())


def tampered() -> FinishedRollout:
    node = leaf("bad", TEXT, None, "bad")
    report = {"integrity": {"grade": "tampered", "findings": []}}
    node.results["reward"] = VerifyResult(reward=1.0, meta=report)
    return rollout(node, bad_call())


def counterfactual() -> FinishedRollout:
    answers = {"win": 0.5, "lose": 0.5, "bad": 0.0}
    return rollout(leaf("bad", TEXT, 1.0, "bad"), bad_call(), answers=answers)


def truncated() -> FinishedRollout:
    return rollout(leaf("bad", TEXT, 1.0, "bad", stop_reason="max_tokens"), bad_call())


def mixed_versions() -> FinishedRollout:
    return rollout(leaf("bad", TEXT, 1.0, "bad"), bad_call(policy_version="v2"))


def mixed_call() -> FinishedRollout:
    return rollout(leaf("bad", TEXT, 1.0, "bad"), bad_call(end_policy_version="v2"))


def retokenised() -> FinishedRollout:
    prompt = [1, 99, 3, 4, 5, 10]
    return rollout(leaf("bad", TEXT, 1.0, "bad"), bad_call(prompt=prompt))


def without_logprobs() -> FinishedRollout:
    return rollout(leaf("bad", TEXT, 1.0, "bad"), bad_call(logprobs=None))


def without_prompt() -> FinishedRollout:
    """The upstream sends the tokens of the answer, and not those that the model read."""
    return rollout(leaf("bad", TEXT, 1.0, "bad"), bad_call(prompt=None))


def auxiliary() -> FinishedRollout:
    aux = call("aux", TEXT, [50, 51], [TOKEN], purpose="aux")
    last = call("bad", "fine", CONTEXT, [11])
    return rollout(leaf("bad", "fine", 1.0, "aux", "bad"), aux, last)


def compaction() -> FinishedRollout:
    """The agent sums up the conversation between two calls of one step."""
    before = call("before", "I go on", CONTEXT, [11])
    summary = {"messages": [SYSTEM, {"role": "user", "content": "summary"}]}
    after = bad_call(prompt=[1, 20, 21], request=summary)
    return rollout(leaf("bad", TEXT, 1.0, "before", "bad"), before, after)


HAZARDS = {
    "unscored": Hazard(unscored, "unscored"),
    "tampered": Hazard(tampered, "tampered"),
    "counterfactual": Hazard(counterfactual, "counterfactual"),
    "truncated": Hazard(truncated, "truncated", ("bad",), is_marked=True),
    "mixed-versions": Hazard(mixed_versions, "mixed_versions", ("bad",), is_marked=True),
    "mixed-call": Hazard(mixed_call, "mixed_calls", is_marked=True),
    "retokenised": Hazard(retokenised, "breaks", ("bad",), is_marked=True),
    "without-logprobs": Hazard(without_logprobs, "missing_logprobs", is_marked=True),
    "without-prompt": Hazard(without_prompt, "missing_logprobs", is_marked=True),
    "auxiliary": Hazard(auxiliary, may_train=("bad",)),
    "compaction": Hazard(compaction, "breaks", ("before", "bad"), is_marked=True),
}


def said(calls: dict[str, ModelCall], names: tuple[str, ...]) -> set[Trained]:
    """Every token that these calls sampled with a log-probability, after what the model saw."""
    pairs: set[Trained] = set()
    for each in (calls[name] for name in names):
        prompt, tokens = each.prompt_token_ids or (), each.completion_token_ids or ()
        if each.logprobs is not None:
            pairs |= {((*prompt, *tokens[:at]), token) for at, token in enumerate(tokens)}
    return pairs
