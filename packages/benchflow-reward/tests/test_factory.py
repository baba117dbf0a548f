from importlib.metadata import entry_points

import pytest
from benchflow_contracts import (
    Endpoint,
    TaskError,
    UsageError,
    needs_processes,
    stops_processes,
)
from benchflow_reward import (
    AskedUser,
    ExactMatch,
    JsonMatch,
    LLMJudge,
    MemoryFiles,
    ReasoningMentions,
    RegexMatch,
    Rubric,
    ScriptVerifier,
    StateQuery,
    make_rewards,
)

ENDPOINT = Endpoint(url="http://127.0.0.1:1/v1")
HERMETIC = ScriptVerifier(needs_processes=False, stops_processes=True)


def rewards(make_task, verifier, **operator):
    return make_rewards(make_task(verifier=verifier), **operator)


def test_the_usual_task_has_a_script_verifier(make_task):
    assert rewards(make_task, {}) == [HERMETIC]
    assert rewards(make_task, {}, isolation="twin") == [ScriptVerifier(isolation="twin")]


def test_a_hermetic_verifier_needs_processes_only_for_its_collect_hooks(make_task):
    [plain] = rewards(make_task, {})
    [collects] = rewards(make_task, {"collect": [{"command": "save"}]})
    [twin] = rewards(make_task, {"isolation": "twin"})
    assert [needs_processes(reward) for reward in (plain, collects, twin)] == [False, True, True]
    assert [stops_processes(reward) for reward in (plain, collects, twin)] == [True, True, False]


def test_a_reward_stops_processes_only_to_read_a_file(make_task):
    tables = [{"kind": "exact", "expected": "x"}]
    assert not stops_processes(rewards(make_task, {"type": "rewards", "rewards": tables})[0])
    tables.append({"kind": "memory", "directory": "/m"})
    assert stops_processes(rewards(make_task, {"type": "rewards", "rewards": tables})[0])


def test_signals_come_before_the_verdict_that_ends_the_box(make_task):
    made = rewards(make_task, {"rewards": [{"kind": "asked_user", "weight": 0, "wrong": -1}]})
    assert made == [AskedUser(wrong=-1), HERMETIC]


def test_every_kind_can_be_declared(make_task):
    tables = [
        {"kind": "exact", "expected": "x", "file": "/workspace/a", "strip": False},
        {"kind": "regex", "pattern": "x", "ignore_case": True, "weight": 2},
        {"kind": "json", "expected": {"a": 1}, "pointer": "/x", "subset": True},
        {"kind": "state", "database": "/d", "table": "t", "where": {"id": 1}, "count": 1},
        {"kind": "asked_user", "expected": False, "match": "who"},
        {"kind": "reasoning", "pattern": "x", "weight": 0},
        {"kind": "memory", "directory": "/m", "files": "*.md", "pattern": "x", "name": "notes"},
    ]
    reasoning, rubric = rewards(make_task, {"type": "rewards", "rewards": tables})
    assert reasoning == ReasoningMentions(pattern="x")
    assert rubric == Rubric(
        criteria=[
            (ExactMatch(expected="x", file="/workspace/a", strip=False), 1),
            (RegexMatch(pattern="x", ignore_case=True), 2),
            (JsonMatch(expected={"a": 1}, pointer="/x", subset=True), 1),
            (StateQuery(database="/d", table="t", where={"id": 1}, count=1), 1),
            (AskedUser(expected=False, match="who"), 1),
            (MemoryFiles(directory="/m", files="*.md", pattern="x", name="notes"), 1),
        ]
    )
    assert rubric.name == "reward"


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({}, "kind"),
        ({"kind": "python", "function": "os:system"}, "kind"),
        ({"kind": ["exact"]}, "kind"),
        ({"kind": "exact"}, "expected"),
        ({"kind": "exact", "expected": "x", "typo": 1}, "typo"),
        ({"kind": "exact", "expected": "x", "file": "relative"}, "file"),
        ({"kind": "exact", "expected": "x", "file": "/a/../b"}, "file"),
        ({"kind": "regex", "pattern": "("}, "pattern"),
        ({"kind": "regex", "pattern": "x", "weight": -1}, "weight"),
        ({"kind": "regex", "pattern": "x", "weight": float("inf")}, "weight"),
        ({"kind": "regex", "pattern": "x", "name": "Bad Name"}, "name"),
        ({"kind": "json", "expected": 1, "pointer": "x"}, "pointer"),
        ({"kind": "state", "database": "/d", "table": "t", "count": -1}, "count"),
        ({"kind": "asked_user", "wrong": float("nan")}, "wrong"),
        ({"kind": "memory", "directory": "/m", "files": "/etc/*"}, "files"),
    ],
)
def test_an_error_names_the_key(make_task, table, key):
    tables = [{"kind": "asked_user"}, table]
    with pytest.raises(TaskError) as caught:
        rewards(make_task, {"type": "rewards", "rewards": tables})
    assert caught.value.where == f"task.toml:verifier.rewards[1].{key}"


def test_names_are_unique(make_task):
    tables = [{"kind": "asked_user"}, {"kind": "asked_user"}]
    with pytest.raises(TaskError, match=r"rewards\[1\]\.name"):
        rewards(make_task, {"type": "rewards", "rewards": tables})


def test_the_verdict_has_one_owner(make_task):
    for verifier in (
        {"rewards": [{"kind": "asked_user", "weight": 1}]},
        {"rewards": [{"kind": "asked_user", "weight": 0, "name": "reward"}]},
        {"type": "rewards"},
        {"type": "rewards", "rewards": [{"kind": "asked_user", "weight": 0}]},
    ):
        with pytest.raises(TaskError):
            rewards(make_task, verifier)


def test_a_judge_comes_from_the_task_and_its_endpoint_from_the_operator(make_task):
    table = {"criteria": "polite", "scale": [0, 1, 2], "votes": 1, "files": ["/workspace/a"]}
    verifier = {"type": "judge", "judge": table}
    [judge] = rewards(make_task, verifier, judge=ENDPOINT, judge_model="m")
    assert isinstance(judge, LLMJudge)
    assert (judge.criteria, judge.scale, judge.votes) == ("polite", (0, 1, 2), 1)
    assert (judge.client.endpoint, judge.client.model) == (ENDPOINT, "m")
    named = {"type": "judge", "judge": {**table, "model": "from-task"}}
    [judge] = rewards(make_task, named, judge=ENDPOINT)
    assert judge.client.model == "from-task"
    with pytest.raises(UsageError, match="endpoint"):
        rewards(make_task, verifier, judge_model="m")
    with pytest.raises(UsageError, match="model"):
        rewards(make_task, verifier, judge=ENDPOINT)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({}, "criteria"),
        ({"criteria": "x", "votes": 2}, "votes"),
        ({"criteria": "x", "scale": [1, 0]}, "scale"),
        ({"criteria": "x", "files": ["a"]}, "files"),
        ({"criteria": "x", "upstream": "http://evil"}, "upstream"),
    ],
)
def test_a_judge_error_names_the_key(make_task, table, key):
    with pytest.raises(TaskError) as caught:
        rewards(make_task, {"type": "judge", "judge": table}, judge=ENDPOINT, judge_model="m")
    assert caught.value.where == f"task.toml:verifier.judge.{key}"


def test_the_registry_finds_the_factory_for_each_type():
    found = {point.name: point for point in entry_points(group="benchflow.rewards")}
    assert {"script", "rewards", "judge"} <= found.keys()
    assert found["script"].load() is make_rewards
