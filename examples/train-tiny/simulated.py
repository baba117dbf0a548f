"""Rollouts of the lock without sandboxes: the task is simulated, and the rest is the same.

A rollout costs a few milliseconds, so a comparison can have many seeds. The model server samples
the tokens, and BenchFlow makes the samples and their credit from trees and recorded calls, as it
does for real rollouts.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
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
from benchflow_export import RolloutGroup, group_rollouts
from lock import Lock
from model_server import ModelServer
from rollouts import OPTIONS

MAX_CALLS = 4
REWARDS = (0.0, 0.3333, 0.6667, 1.0)


@dataclass
class Branch:
    """A node of a tree, with the conversation and the lock after its model call."""

    node: RolloutNode
    messages: list[dict[str, Any]]
    lock: Lock = field(default_factory=Lock)
    calls: int = 0
    is_over: bool = False


class SimulatedRollouts:
    """Plays the lock with the model of a server. It has the `group` of `LockRollouts`."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._numbers = itertools.count(1)

    async def group(self, trees: int, branch: Mapping[str, Any] | None = None) -> RolloutGroup:
        """Play `trees` rollouts, each forked as `branch` says, and return their samples."""
        return group_rollouts("lock", [self._tree(branch) for _ in range(trees)], OPTIONS)

    def _tree(self, branch: Mapping[str, Any] | None) -> FinishedRollout:
        calls: dict[str, ModelCall] = {}
        root = RolloutNode(id="root")
        begin = Branch(root, [{"role": "user", "content": "Open the lock."}])
        at = int(branch["at_call"]) if branch else 0
        state = self._play(begin, at - 1, calls) if branch else begin
        width = int(branch["n"]) if branch and not state.is_over else 1
        for _ in range(width):
            end = self._play(state, MAX_CALLS, calls)
            end.node.results["reward"] = VerifyResult(reward=REWARDS[end.lock.right])
        nodes = {node.id: node for node in root.subtree}
        number = next(self._numbers)
        return FinishedRollout(
            tree=RolloutTree(f"simulated-{number}", "lock", root, nodes, status="completed"),
            task_digest="simulated",
            instruction="Open the lock.",
            agent="policy",
            model="tiny",
            sandbox="none",
            finished_at=1,
            calls=calls,
        )

    def _play(self, state: Branch, until: int, calls: dict[str, ModelCall]) -> Branch:
        """Return the state after `until` model calls of its path, or at the end."""
        while not state.is_over and state.calls < until:
            state = self._call(state, calls)
        return state

    def _call(self, state: Branch, calls: dict[str, ModelCall]) -> Branch:
        body = self._server.complete({"messages": state.messages})
        choice = body["choices"][0]
        call = ModelCall(
            id=f"c{next(self._numbers)}",
            node=state.node.id,
            api="openai-chat",
            request={"messages": list(state.messages)},
            response=body,
            status=200,
            prompt_token_ids=body["prompt_token_ids"],
            completion_token_ids=choice["token_ids"],
            logprobs=[choice["logprobs"]["content"][0]["logprob"]],
            policy_version=body["model"].removeprefix("tiny-"),
            usage=Usage(),
            started_at=0,
            finished_at=1,
        )
        calls[call.id] = call
        step = Step(id=call.id, model_calls=(call.id,), started_at=0, finished_at=1)
        node = RolloutNode(id=f"n{next(self._numbers)}", parent=state.node, step=step)
        state.node.children.append(node)
        message, lock = choice["message"], Lock(state.lock.right, state.lock.is_jammed)
        after = Branch(node, [*state.messages, message], lock, state.calls + 1)
        if not message.get("tool_calls"):
            after.is_over = True
            return after
        [tool] = message["tool_calls"]
        digit = tool["function"]["arguments"].rpartition("dial ")[2][0]
        answer = {"role": "tool", "tool_call_id": tool["id"], "content": lock.dial(digit)}
        after.messages.append(answer)
        after.is_over = after.calls == MAX_CALLS
        return after
