"""How many token breaks does a chat template cause, and does the export count all of them?

Each of two templates renders 10,000 turns, in chains of `TURNS` turns. One keeps its prefix. The
other one is like Qwen3's: it removes the thoughts of earlier turns when the user speaks again. A
break is counted twice: by comparing prompts, and by the samples of the recorded calls.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchflow_contracts import (
    FinishedRollout,
    ModelCall,
    RolloutNode,
    RolloutTree,
    Step,
    Usage,
    VerifyResult,
)
from benchflow_export import samples_of
from report import emit

CHAINS, TURNS = 100, 100
Messages = list[dict[str, Any]]


def keeps_prefix(messages: Messages) -> str:
    """Render every message as it was said."""
    return "".join(f"<{m['role']}>{_thought(m)}{m['content']}</>" for m in messages)


def like_qwen3(messages: Messages) -> str:
    """Render thoughts only after the last message of the user, as Qwen3's template does."""
    users = [at for at, message in enumerate(messages) if message["role"] == "user"]
    last = users[-1] if users else -1
    return "".join(
        f"<{m['role']}>{_thought(m) if at > last else ''}{m['content']}</>"
        for at, m in enumerate(messages)
    )


def _thought(message: dict[str, Any]) -> str:
    thought = message.get("reasoning_content")
    return f"<think>{thought}</think>" if thought else ""


def rollout(number: int, render: Callable[[Messages], str], thinks: float) -> FinishedRollout:
    """Return a rollout of `TURNS` calls. In the share `thinks` of the turns, the model thinks.

    A token is a byte. The user speaks in every second turn, a tool in the others.
    """
    root = at = RolloutNode(id="n0")
    nodes, calls = {root.id: root}, dict[str, ModelCall]()
    messages: Messages = []
    for turn in range(TURNS):
        role = "user" if turn % 2 == 0 else "tool"
        more = {"tool_call_id": "t"} if role == "tool" else {}
        messages.append({"role": role, "content": f"turn {number}.{turn}", **more})
        prompt = list(f"{render(messages)}<assistant>".encode())
        reply: dict[str, Any] = {"role": "assistant", "content": f"I did {turn}."}
        if (turn * 7919 + number * 31) % 1000 < thinks * 1000:
            reply["reasoning_content"] = f"what is {turn}?"
        said = list(f"{_thought(reply)}{reply['content']}</>".encode())
        ident = f"c{turn}"
        calls[ident] = _call(ident, [*messages], reply, prompt, said)
        messages.append(reply)
        step = Step(id=ident, model_calls=(ident,), started_at=0, finished_at=1)
        at = RolloutNode(id=f"n{turn + 1}", parent=at, step=step)
        assert at.parent is not None
        at.parent.children.append(at)
        nodes[at.id] = at
    at.results["reward"] = VerifyResult(reward=1.0)
    tree = RolloutTree(f"r{number}", "task", root, nodes, status="completed")
    return FinishedRollout(
        tree=tree,
        task_digest="d",
        instruction="Go on.",
        agent="policy",
        model="m",
        sandbox="local",
        finished_at=1,
        calls=calls,
    )


def _call(
    ident: str, messages: Messages, reply: dict[str, Any], prompt: list[int], said: list[int]
) -> ModelCall:
    return ModelCall(
        id=ident,
        node="n",
        api="openai-chat",
        request={"messages": messages},
        response={"choices": [{"message": reply, "finish_reason": "stop"}]},
        status=200,
        prompt_token_ids=tuple(prompt),
        completion_token_ids=tuple(said),
        logprobs=(-0.5,) * len(said),
        usage=Usage(input_tokens=len(prompt), output_tokens=len(said)),
        started_at=0,
        finished_at=1,
    )


def breaks_by_hand(calls: Iterator[ModelCall]) -> int:
    """Count the prompts that do not begin with the tokens of the call before."""
    count, seen = 0, ()
    for call in calls:
        prompt, said = call.prompt_token_ids or (), call.completion_token_ids or ()
        count += prompt[: len(seen)] != seen
        seen = (*prompt, *said)
    return count


def main() -> int:
    """Print the breaks of both templates in 10,000 turns; fail if a break is not counted."""
    missed = 0
    for name, render, thinks in (
        ("prefix_keeping", keeps_prefix, 1.0),
        ("qwen3_like_thinks_always", like_qwen3, 1.0),
        ("qwen3_like_thinks_sometimes", like_qwen3, 0.1),
    ):
        counted = expected = repeated = trained = said = 0
        began = time.process_time()
        for number in range(CHAINS):
            made = rollout(number, render, thinks)
            expected += breaks_by_hand(iter(made.calls.values()))
            [sample] = samples_of(made)
            counted, repeated = counted + sample.breaks, repeated + sample.repeated_tokens
            trained += sum(sum(each.loss_mask) for each in sample.sequences())
            said += sum(len(call.completion_token_ids or ()) for call in made.calls.values())
        emit(
            f"prefix_breaks_{name}",
            [float(counted)],
            unit="token breaks in 10,000 turns",
            expected=expected,
            repeated_tokens=repeated,
            sampled_tokens=said,
            trained_tokens=trained,
            cpu_sec=round(time.process_time() - began, 1),
        )
        missed += counted != expected or trained != said
        missed += name == "prefix_keeping" and counted > 0
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
