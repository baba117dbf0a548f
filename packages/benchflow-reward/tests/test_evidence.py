"""What a reward does with the evidence that it is given, and without it."""

import asyncio

import pytest
from benchflow_contracts import (
    Endpoint,
    EnvState,
    Evidence,
    RolloutNode,
    Step,
    TableState,
)
from benchflow_reward import (
    AskedUser,
    ChatClient,
    ExactMatch,
    JsonMatch,
    LLMJudge,
    MemoryFiles,
    PythonReward,
    ReasoningMentions,
    RegexMatch,
    Rubric,
    ScriptVerifier,
    StateQuery,
)
from benchflow_testing import check_reward

MAIL = TableState(columns=("id",), rows=((1,),), row_count=1, digest="0")
OF_THE_NODE = (
    AskedUser(expected=False),
    ExactMatch(expected="7"),
    JsonMatch(expected=7),
    PythonReward(function=lambda node, evidence: 1),
    ReasoningMentions(pattern="think"),
    RegexMatch(pattern="7"),
    Rubric(criteria=[(ExactMatch(expected="7"), 1)]),
    StateQuery(database="/mail.db", table="mail", count=1),
)
OF_THE_WORLD = (
    ExactMatch(expected="7", file="/workspace/out.txt"),
    MemoryFiles(directory="/workspace"),
)
JUDGE = ChatClient(Endpoint(url="http://127.0.0.1:1"), "m")


def recorded() -> RolloutNode:
    """A node of a rollout that never ran here."""
    step = Step(id="s1", message="7", reasoning="I think", started_at=0, finished_at=1)
    node = RolloutNode(id="n1", parent=RolloutNode(id="n0"), step=step)
    node.env_state = EnvState(databases={"/mail.db": {"mail": MAIL}})
    return node


def failed(results) -> list[str]:
    assert len(results) > 1
    return [f"{result.name}: {result.reason}" for result in results if result.status != "passed"]


@pytest.mark.parametrize("reward", OF_THE_NODE, ids=lambda reward: type(reward).__name__)
def test_a_reward_of_the_node_scores_what_never_ran_here(reward):
    assert asyncio.run(reward.score(recorded(), Evidence())).reward == 1
    assert not failed(asyncio.run(check_reward(reward, recorded)))


@pytest.mark.parametrize("reward", OF_THE_WORLD, ids=lambda reward: type(reward).__name__)
def test_a_reward_of_the_world_keeps_the_promises_of_the_kit(make_case, box, reward):
    box.files.put("/workspace/out.txt", b"7")
    evidence = make_case().evidence
    assert not failed(asyncio.run(check_reward(reward, recorded, lambda: evidence)))


@pytest.mark.parametrize(
    "reward",
    [*OF_THE_WORLD, ScriptVerifier(), LLMJudge(client=JUDGE, criteria="x")],
    ids=lambda reward: type(reward).__name__,
)
def test_a_reward_that_lacks_its_evidence_says_so_by_type(reward):
    only = ["missing_evidence_is_an_error_of_its_own_type"]
    (result,) = asyncio.run(check_reward(reward, recorded, only=only))
    assert result.status == "passed", result.reason
