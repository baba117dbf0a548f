"""Rewards of production rollouts: those of an eval, and three that need no content."""

from dataclasses import dataclass
from typing import ClassVar

from benchflow_contracts import Evidence, RewardEvent, RolloutNode, Space, VerifyResult

from .facts import count_loops


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolErrors:
    """The share of tool calls that did not fail. Action space; unscored without results."""

    name: str = "tool_errors"
    needs_processes: ClassVar[bool] = False

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Count the observations on the path to `node`."""
        del evidence
        seen = [(step.id, one) for step in node.steps for one in step.observations]
        if not seen:
            return _unscored("no tool returned a result", "action")
        failed = [(step, one) for step, one in seen if one.status == "failed"]
        events = tuple(
            RewardEvent(
                source=self.name, value=0.0, space="action", granularity="step", step_id=step
            )
            for step in dict.fromkeys(step for step, _ in failed)
        )
        reward = 1.0 - len(failed) / len(seen)
        return VerifyResult(reward=reward, events=events, space="action", granularity="step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """1 if no tool call was repeated three times running, else 0. Action space."""

    name: str = "loops"
    needs_processes: ClassVar[bool] = False

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Look for loops on the path to `node`."""
        del evidence
        steps = node.steps
        if not any(step.tool_calls for step in steps):
            return _unscored("no tool was called", "action")
        loops = count_loops(steps)
        return VerifyResult(reward=float(not loops), items={"loops": float(loops)}, space="action")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOperations:
    """The share of memory operations that succeeded and returned content. Memory space."""

    name: str = "memory_operations"
    needs_processes: ClassVar[bool] = False

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Count the memory operations on the path to `node`."""
        del evidence
        steps = node.steps
        wanted = {call.id for step in steps for call in step.tool_calls if call.kind == "memory"}
        seen = [one for step in steps for one in step.observations if one.tool_call_id in wanted]
        if not seen:
            return _unscored("no memory operation", "memory")
        good = sum(one.status == "completed" and bool(one.content) for one in seen)
        return VerifyResult(reward=good / len(seen), space="memory")


def _unscored(reason: str, space: Space) -> VerifyResult:
    return VerifyResult.unscored(reason).model_copy(update={"space": space})
