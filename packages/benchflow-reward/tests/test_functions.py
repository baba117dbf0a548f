import asyncio

import pytest
from benchflow_contracts import (
    EnvState,
    Evidence,
    EvidenceMissingError,
    RewardError,
    RolloutNode,
    SandboxError,
    TableState,
    TransferError,
    UsageError,
    VerifyResult,
)
from benchflow_reward import (
    AskedUser,
    ExactMatch,
    JsonMatch,
    MemoryFiles,
    PythonReward,
    ReasoningMentions,
    RegexMatch,
    StateQuery,
)


def score(reward, case) -> VerifyResult:
    return asyncio.run(reward.score(*case))


def test_exact_match_judges_the_last_non_empty_message(make_case, step):
    case = make_case(step(message="wrong"), step(message=" Paris\n"), step(message=""))
    assert score(ExactMatch(expected="Paris"), case).reward == 1
    assert score(ExactMatch(expected="paris"), case).reward == 0
    assert score(ExactMatch(expected="paris", ignore_case=True), case).reward == 1
    assert score(ExactMatch(expected="Paris", strip=False), case).reward == 0


def test_a_file_of_the_box_is_read_while_nothing_runs(make_case, box, provider):
    box.files.put("/workspace/out.txt", "42\n", user="agent")
    result = score(ExactMatch(expected="42", file="/workspace/out.txt"), make_case())
    assert result.reward == 1
    assert provider.operations.index("freeze") < provider.operations.index("download")
    assert provider.operations.index("download") < provider.operations.index("thaw")


def test_a_missing_linked_or_binary_file_scores_zero_with_a_reason(make_case, box):
    box.files.put("/etc/answer", "42")
    box.files.link("/etc/answer", "/workspace/link", user="agent")
    box.files.put("/workspace/binary", b"\xff\xfe", user="agent")
    for name in ("missing", "link", "binary"):
        result = score(ExactMatch(expected="42", file=f"/workspace/{name}"), make_case())
        assert result.reward == 0
        assert result.meta["reason"]


def test_no_message_scores_zero(make_case):
    assert score(ExactMatch(expected=""), make_case()).reward == 0


def test_a_dead_box_or_a_broken_transfer_is_no_verdict(make_case, box, provider):
    reward = ExactMatch(expected="42", file="/workspace/out.txt")
    provider.faults.fail_on["download"] = TransferError("reset", retryable=True)
    with pytest.raises(RewardError, match="reset"):
        score(reward, make_case())
    provider.faults.fail_on["download"] = SandboxError("gone")
    with pytest.raises(RewardError, match="gone"):
        score(reward, make_case())
    with pytest.raises(EvidenceMissingError, match="live world"):
        score(reward, (RolloutNode(id="dead"), Evidence()))


def test_regex_match_searches_lines(make_case, step):
    case = make_case(step(message="one\ntotal: 7\nend"))
    assert score(RegexMatch(pattern=r"^total: \d$"), case).reward == 1
    assert score(RegexMatch(pattern=r"\Atotal"), case).reward == 0
    assert score(RegexMatch(pattern="TOTAL", ignore_case=True), case).reward == 1


def test_a_bad_pattern_is_no_verdict(make_case, step):
    with pytest.raises(RewardError, match="not a regular expression"):
        score(RegexMatch(pattern="("), make_case(step(message="x")))


def test_an_endless_pattern_is_killed_and_is_no_verdict(make_case, step, monkeypatch):
    monkeypatch.setattr("benchflow_reward.matcher.TIMEOUT_SEC", 0.3)
    case = make_case(step(message="a" * 60 + "!"))
    with pytest.raises(RewardError, match="took longer"):
        score(RegexMatch(pattern="(a+)+$"), case)


@pytest.mark.parametrize(
    ("text", "fields", "reward"),
    [
        ('{"a": 1, "b": [1, 2]}', {"expected": {"b": [1, 2], "a": 1}}, 1),
        ('{"a": 1, "b": 2}', {"expected": {"a": 1}}, 0),
        ('{"a": 1, "b": 2}', {"expected": {"a": 1}, "subset": True}, 1),
        ('{"a": {"x": [1, {"y": 2, "z": 3}]}}', {"expected": 2, "pointer": "/a/x/1/y"}, 1),
        ('{"a/b": {"~": 5}}', {"expected": 5, "pointer": "/a~1b/~0"}, 1),
        ("[1, 2]", {"expected": 2, "pointer": "/7"}, 0),
        ('{"a": true}', {"expected": {"a": 1}}, 0),
        ('{"a": 1.0}', {"expected": {"a": 1}}, 1),
        ('{"a": 1, "a": 1}', {"expected": {"a": 1}}, 0),
        ("not json", {"expected": None}, 0),
        ("[" * 5000, {"expected": []}, 0),
    ],
)
def test_json_match_compares_values(make_case, step, text, fields, reward):
    assert score(JsonMatch(**fields), make_case(step(message=text))).reward == reward


TABLE = TableState(
    columns=("id", "to", "sent"),
    rows=((1, "ann", 1), (2, "bob", 0), (3, "ann", 1)),
    row_count=3,
    digest="d",
)
BIG = TableState(columns=("id",), rows=None, row_count=10**6, digest="d")
WORLD = EnvState(databases={"/mail.db": {"mail": TABLE, "log": BIG}})


@pytest.mark.parametrize(
    ("fields", "reward"),
    [
        ({"where": {"to": "ann"}, "count": 2}, 1),
        ({"where": {"to": "ann"}, "count": 3}, 0),
        ({"where": {"to": "eve"}, "count": 0}, 1),
        ({"where": {"to": "ann"}, "equals": {"sent": 1}}, 1),
        ({"equals": {"sent": 1}}, 0),
        ({"where": {"to": "eve"}, "equals": {"sent": 1}}, 0),
        ({"where": {"id": 2}, "equals": {"sent": False}}, 0),
    ],
)
def test_state_query_looks_at_rows(make_case, fields, reward):
    query = StateQuery(database="/mail.db", table="mail", **fields)
    assert score(query, make_case(env_state=WORLD)).reward == reward


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"table": "log", "count": 1}, "too many"),
        ({"table": "nope", "count": 0}, "no table"),
        ({"table": "mail", "where": {"nope": 1}, "count": 0}, "no columns"),
        ({"database": "/x.db", "table": "mail", "count": 0}, "no database"),
    ],
)
def test_a_query_that_cannot_be_answered_is_no_verdict(make_case, fields, why):
    query = StateQuery(**{"database": "/mail.db", **fields})
    with pytest.raises(RewardError, match=why):
        score(query, make_case(env_state=WORLD))


def test_a_world_that_was_not_captured_is_no_verdict(make_case):
    with pytest.raises(RewardError, match="none was captured"):
        score(StateQuery(database="/mail.db", table="mail", count=0), make_case())


def test_asking_is_right_only_when_expected(make_case, step, question):
    asking = make_case(step(message="hm"), step(ask=question("Which Ann?")), step(message="ok"))
    silent = make_case(step(message="done"), step(ask=question(kind="permission")))
    assert score(AskedUser(), asking).reward == 1
    assert score(AskedUser(expected=False), asking).reward == 0
    assert score(AskedUser(), silent).reward == 0
    assert score(AskedUser(wrong=-1), silent).reward == -1
    assert score(AskedUser(expected=False), silent).reward == 1


def test_each_asking_step_is_an_event_of_the_action_space(make_case, step, question):
    first, second = step(ask=question("Which Ann?")), step(ask=question("Sure?"))
    result = score(AskedUser(), make_case(first, step(), second))
    assert [event.step_id for event in result.events] == [first.id, second.id]
    assert (result.space, result.granularity) == ("action", "step")
    assert {event.granularity for event in result.events} == {"step"}


def test_only_matching_questions_count(make_case, step, question):
    case = make_case(step(ask=question("What colour?")))
    assert score(AskedUser(match="colou?r"), case).reward == 1
    assert score(AskedUser(match="second"), case).reward == 1
    assert score(AskedUser(match="size"), case).reward == 0


def test_reasoning_is_searched_step_by_step(make_case, step):
    hit = step(reasoning="I should check the calendar first")
    case = make_case(step(reasoning="hello"), hit, step())
    result = score(ReasoningMentions(pattern="calendar"), case)
    assert result.reward == 1
    assert [event.step_id for event in result.events] == [hit.id]
    assert (result.space, result.granularity) == ("reasoning", "step")
    assert score(ReasoningMentions(pattern="calendar", expected=False), case).reward == 0


def test_without_recorded_reasoning_there_is_no_verdict(make_case, step):
    result = score(ReasoningMentions(pattern="x"), make_case(step(message="x")))
    assert result.reward is None
    assert result.error


def test_memory_files_are_read_from_the_box(make_case, box):
    box.files.put("/home/agent/memory/notes.md", "Ann likes tea", user="agent")
    box.files.put("/home/agent/memory/deep/skill.txt", "x", user="agent")
    directory = "/home/agent/memory"
    result = score(MemoryFiles(directory=directory, pattern="likes tea"), make_case())
    assert result.reward == 1
    assert result.space == "memory"
    assert [event.tag for event in result.events] == ["notes.md"]
    assert score(MemoryFiles(directory=directory, files="*.txt"), make_case()).reward == 1
    assert score(MemoryFiles(directory=directory, pattern="coffee"), make_case()).reward == 0
    assert score(MemoryFiles(directory="/home/agent/none"), make_case()).reward == 0


def test_python_rewards_may_be_plain_async_or_full_results(make_case):
    async def later(node, evidence):
        return 0.25

    case = make_case()
    assert score(PythonReward(function=lambda node, evidence: True), case).reward == 1
    assert score(PythonReward(function=later), case).reward == 0.25
    full = VerifyResult(reward=0.5, items={"a": 1})
    assert score(PythonReward(function=lambda node, evidence: full), case) == full


@pytest.mark.parametrize("value", [2, -0.1, float("nan"), "1", None])
def test_a_python_reward_outside_of_its_range_is_no_verdict(make_case, value):
    with pytest.raises(RewardError):
        score(PythonReward(function=lambda node, evidence: value), make_case())


def test_a_crash_in_a_python_reward_is_no_verdict(make_case):
    with pytest.raises(RewardError, match="ZeroDivisionError"):
        score(PythonReward(function=lambda node, evidence: 1 / 0), make_case())


def test_python_rewards_are_imported_by_name():
    assert PythonReward.load("math:gamma").function(3) == 2
    for path in ("math", "math:nope", "no_such_module:x", "math:pi", ":", ""):
        with pytest.raises(UsageError):
            PythonReward.load(path)
