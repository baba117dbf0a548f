"""A forked rollout with recorded model calls, made by hand."""

import base64
from typing import Any

from benchflow_contracts import (
    BranchRecord,
    FinishedRollout,
    ModelCall,
    RolloutNode,
    RolloutTree,
    RoutedExperts,
    Step,
    Usage,
    VerifyResult,
)

SYSTEM = {"role": "system", "content": "You work."}
USER = {"role": "user", "content": "Do it."}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "refusal": None}


def call(ident: str, messages: list[Any], reply: str, prompt: list[int], tokens: list[int], **more):
    fields = {
        "id": ident,
        "node": "n",
        "api": "openai-chat",
        "request": {"messages": messages},
        "response": {"choices": [{"message": said(reply)}]},
        "status": 200,
        "prompt_token_ids": prompt,
        "completion_token_ids": tokens,
        "logprobs": [-0.5] * len(tokens),
        "usage": Usage(input_tokens=len(prompt), output_tokens=len(tokens)),
        "started_at": 1,
        "finished_at": 2,
    }
    return ModelCall(**{**fields, **more})


def step(ident: str, *calls: str, message: str = "") -> Step:
    return Step(id=ident, model_calls=calls, message=message, started_at=0, finished_at=1)


def forked(
    calls: list[ModelCall], *, answers: dict[str, float] | None = None, rollout_id: str = "r"
) -> FinishedRollout:
    """A first step, then three children, the last one without a score.

    `answers` makes it a fork by the answers a, b and c.
    """
    root = RolloutNode(id="n0")
    first = RolloutNode(id="n1", parent=root, step=step("s1", "c1", message="hello"))
    left = RolloutNode(id="n2", parent=first, step=step("s2", "c2", message="left"), label="a")
    right = RolloutNode(id="n3", parent=first, step=step("s3", "c3", message="right"), label="b")
    lost = RolloutNode(id="n4", parent=first, label="c")
    root.children, first.children = [first], [left, right, lost]
    left.results["reward"] = VerifyResult(reward=1.0)
    right.results["reward"] = VerifyResult(reward=0.0)
    if answers is not None:
        first.branch = BranchRecord(
            policy="ask-user", fidelity="live", reason="", children=3, answers=answers
        )
    index = {node.id: node for node in root.subtree}
    tree = RolloutTree(rollout_id=rollout_id, task_id="t", root=root, index=index)
    return FinishedRollout(
        tree=tree,
        task_digest="d",
        instruction="Do it.",
        agent="policy",
        model="m",
        sandbox="local",
        finished_at=2,
        calls={call.id: call for call in calls},
    )


def recorded() -> list[ModelCall]:
    first = [SYSTEM, USER]
    after = [*first, {"role": "assistant", "content": "hello"}]
    a, b = {"role": "user", "content": "A"}, {"role": "user", "content": "B"}
    return [
        call("c1", first, "hello", [1, 2, 3], [4, 5]),
        call("c2", [*after, a], "left", [1, 2, 3, 4, 5, 6], [7]),
        call("c3", [*after, b], "right", [1, 2, 3, 4, 5, 8], [9]),
    ]


def routed(calls: list[ModelCall]) -> list[ModelCall]:
    """Return the calls with experts of two layers: the id of a token, and the next number.

    An engine has no row for the last token, which the model did not read.
    """
    found: list[ModelCall] = []
    for each in calls:
        read = [*(each.prompt_token_ids or ()), *(each.completion_token_ids or ())][:-1]
        data = bytes(expert for token in read for expert in (token, token + 1))
        text = base64.b64encode(data).decode()
        experts = RoutedExperts(data=text, shape=(len(read), 2, 1))
        found.append(each.model_copy(update={"routed_experts": experts}))
    return found
