"""Score closed production rollouts by the rewards of `monitor.toml`."""

import hashlib
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow_contracts import (
    BenchFlowError,
    Endpoint,
    Evidence,
    Reward,
    RolloutNode,
    UsageError,
    VerifyResult,
)
from benchflow_reward import LLMJudge
from benchflow_reward.declared import declared_rewards
from benchflow_reward.judge.client import ChatClient
from benchflow_traces import ObservedRollout

from .config import MonitorConfig, OnlineJudgeTable, RewardTable
from .database import Score
from .rewards import Loops, MemoryOperations, ToolErrors

_ONLINE: Final[Mapping[str, Any]] = {
    "tool_errors": ToolErrors,
    "loops": Loops,
    "memory_operations": MemoryOperations,
}


@dataclass(frozen=True, slots=True)
class SampledReward:
    """A reward, and the share of rollouts that it scores."""

    reward: Reward
    sample: float


class OnlineScorer:
    """Scores rollouts by the same rewards as an eval.

    Raises:
        UsageError: A reward cannot be made, with its key in `monitor.toml`.
    """

    def __init__(self, config: MonitorConfig) -> None:
        self._rewards = [_make(table, number) for number, table in enumerate(config.rewards)]
        if config.judge is not None:
            self._rewards.append(SampledReward(_judge(config.judge), config.judge.sample))

    async def score(self, rollout: ObservedRollout) -> list[Score]:
        """Return the verdict of each reward that scores this rollout.

        A reward that lacks evidence, or fails, is unscored with the reason. It is never 0.
        """
        node = rollout.tree.leaves[0]
        scores: list[Score] = []
        for sampled in self._rewards:
            name = sampled.reward.name
            if is_sampled(rollout.id, name, sampled.sample):
                scores.append(Score(name, await _verdict(sampled.reward, node)))
        return scores


def is_sampled(rollout: str, reward: str, share: float) -> bool:
    """Return whether `reward` scores this rollout. The same answer at each try."""
    if share >= 1:
        return True
    digest = hashlib.sha256(f"{reward}\0{rollout}".encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


async def _verdict(reward: Reward, node: RolloutNode) -> VerifyResult:
    try:
        return await reward.score(node, Evidence())
    except BenchFlowError as error:
        return VerifyResult.unscored(str(error), error_type=type(error).__name__)
    except Exception as error:  # noqa: BLE001 - a reward of another package may raise anything
        return VerifyResult.unscored(f"{type(error).__name__}: {error}"[:1000])


def _make(table: RewardTable, number: int) -> SampledReward:
    where = f"monitor.toml:rewards[{number}]"
    if (table.kind is None) == (table.import_path is None):
        raise UsageError("give 'kind' or 'import_path'", where=where)
    try:
        if table.import_path is not None:
            reward = _imported(table.import_path)(**table.options)
        elif table.kind is not None and table.kind in _ONLINE:
            reward = _ONLINE[table.kind](**table.options)
        else:
            ((reward, _),) = declared_rewards([{"kind": table.kind, **table.options}])
    except (BenchFlowError, TypeError, ValueError) as error:
        raise UsageError(f"the reward cannot be made: {error}", where=where) from error
    return SampledReward(reward, table.sample)


def _imported(path: str) -> Any:  # noqa: ANN401
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{path!r} cannot be imported: {error}") from error


def _judge(table: OnlineJudgeTable) -> Reward:
    key = os.environ.get(table.api_key_env)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return LLMJudge(
        client=ChatClient(Endpoint(url=table.base_url, headers=headers), table.model),
        criteria=table.criteria,
        votes=table.votes,
        name="judge",
    )
