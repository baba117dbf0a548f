"""The route `score_group`: candidates of a client, scored together by our `GroupReward`."""

from collections.abc import Iterator, Sequence
from typing import Final

from benchflow_contracts import (
    GroupReward,
    RewardError,
    RolloutNode,
    Step,
    Task,
    VerifyResult,
)
from benchflow_contracts.pausing import running_timeout

from benchflow_adapters_ors.sse import encode_error, encode_result
from benchflow_adapters_ors.wire import GroupCandidate, GroupMessage, GroupScore, GroupScores

_SECONDS: Final = 600


async def score_candidates(
    reward: GroupReward, task: Task, candidates: Sequence[GroupCandidate]
) -> tuple[bytes, ...]:
    """Return the events of the scores. A candidate without a score is an error, and never 0."""
    leaves = [_leaf(number, candidate) for number, candidate in enumerate(candidates)]
    try:
        async with running_timeout(_SECONDS):
            verdicts = list(await reward.score_group(task, leaves))
        scores = _scores(verdicts, len(leaves))
    except TimeoutError:
        return (encode_error(f"the group was not scored within {_SECONDS} s"),)
    except Exception as error:  # noqa: BLE001 - a defect of a reward is not a score
        return (encode_error(f"the group has no scores: {error}"),)
    return tuple(encode_result(GroupScores(scores=scores)))


def _scores(verdicts: Sequence[VerifyResult], expected: int) -> tuple[GroupScore, ...]:
    if len(verdicts) != expected:
        raise RewardError(f"{len(verdicts)} verdicts for {expected} candidates")
    scores: list[GroupScore] = []
    for number, verdict in enumerate(verdicts):
        if verdict.reward is None:
            raise RewardError(f"candidate {number} has no score: {verdict.error}")
        scores.append(GroupScore(reward=verdict.reward, metadata={"items": dict(verdict.items)}))
    return tuple(scores)


def _leaf(number: int, candidate: GroupCandidate) -> RolloutNode:
    """Return a path of steps, one for each answer of the model."""
    node = RolloutNode(id=f"c{number}")
    for at, step in enumerate(_steps(candidate.messages)):
        child = RolloutNode(id=f"c{number}.{at}", parent=node, step=step)
        node.children.append(child)
        node = child
    return node


def _steps(messages: Sequence[GroupMessage]) -> Iterator[Step]:
    words: list[str] = []
    for at, message in enumerate(messages):
        text = _text(message)
        if message.role != "assistant":
            words.append(text)
            continue
        yield Step(
            id=f"m{at}",
            prompt="\n\n".join(words) if words else None,
            message=text,
            started_at=0,
            finished_at=0,
        )
        words = []


def _text(message: GroupMessage) -> str:
    texts = [block.get("text") for block in message.blocks if block.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))
