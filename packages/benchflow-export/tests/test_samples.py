"""A sample has the tokens of its leaf, what they earned, and who gave the answers."""

from itertools import pairwise
from pathlib import Path

import pytest
from benchflow_contracts import FinishedRollout, ModelCall, StoreError, TrainingOptions, UsageError
from benchflow_export import load_exporter, samples_of
from forked_calls import SYSTEM, USER, call, forked, recorded

ANSWERS = {"a": 0.75, "b": 0.25, "c": 0.0}
USERS = {"a": 1.0, "b": 0.0, "c": 0.0}


def export(
    name: str, rollouts: list[FinishedRollout], directory: Path, **options: object
) -> tuple[str, dict[str, int]]:
    """Return the text of the only file, and the counts."""
    exporter = load_exporter(name).with_options(TrainingOptions.model_validate(options))
    directory.mkdir()
    counts = exporter.export("job", rollouts, directory)
    [file] = directory.iterdir()
    return file.read_text(), counts.model_dump()


def test_the_tokens_of_a_sample_are_those_of_its_calls_with_one_advantage_each():
    left, right = samples_of(forked(recorded()))
    [sequence] = left.sequences("process")
    assert sequence.token_ids == [1, 2, 3, 4, 5, 6, 7]
    assert sequence.loss_mask == [False, False, False, True, True, False, True]
    assert sequence.logprobs == [None, None, None, -0.5, -0.5, None, -0.5]
    assert sequence.token_advantages == [None] * 6 + [0.5]
    assert [span.id for span in left.spans[:3]] == [span.id for span in right.spans[:3]]
    for before, after in pairwise(left.spans):
        assert (after.parent, after.start) == (before.id, before.end)
    assert [span.kind for span in left.spans] == ["prompt", "user", "sampled", "user", "sampled"]


def test_a_break_begins_another_sequence_and_counts_what_is_repeated():
    calls = recorded()
    calls[1] = call("c2", calls[1].request["messages"], "left", [1, 99, 3, 4, 5, 6], [7])
    left, right = samples_of(forked(calls))
    first, second = left.sequences()
    assert (first.token_ids, second.token_ids) == ([1, 2, 3, 4, 5], [1, 99, 3, 4, 5, 6, 7])
    assert sum(first.loss_mask) + sum(second.loss_mask) == 3
    assert (left.breaks, left.repeated_tokens, right.breaks) == (1, 5, 0)


def test_a_leaf_names_its_user_and_the_probability_of_the_answers():
    left, right = samples_of(forked(recorded(), answers=ANSWERS))
    assert [(each.answer, each.answer_weight) for each in (left, right)] == [
        ("user", 0.75),
        ("user", 0.25),
    ]
    assert left.weighting == "answers"
    assert left.values["n1"] == 0.75
    left, right = samples_of(forked(recorded(), answers=USERS))
    assert (right.answer, right.answer_weight) == ("counterfactual", 0.0)


@pytest.mark.parametrize("name", ["v1-leaves", "v1-graph", "v1-flat", "verifiers", "sft"])
def test_a_leaf_that_the_user_never_leads_to_is_exported_on_request_only(
    name: str, tmp_path: Path
) -> None:
    source = [forked(recorded(), answers=USERS)]
    text, counts = export(name, source, tmp_path / "user")
    assert "left" in text
    assert "right" not in text
    assert (counts["trajectories"], counts["counterfactual"], counts["unscored"]) == (1, 1, 1)
    text, counts = export(name, source, tmp_path / "all", counterfactual=True)
    assert "right" in text
    assert (counts["trajectories"], counts["counterfactual"]) == (2, 0)


def test_a_leaf_is_left_out_if_the_user_was_not_asked(tmp_path: Path) -> None:
    source = forked(recorded(), answers=USERS)
    fork = source.tree.index["n1"]
    assert fork.branch is not None
    fork.branch = fork.branch.model_copy(update={"answers": None})
    assert {each.answer for each in samples_of(source)} == {"unknown"}
    text, counts = export("v1-leaves", [source], tmp_path / "none")
    assert (text, counts["counterfactual"]) == ("", 2)


def test_tokens_that_a_trainer_would_miss_are_counted_or_refused(tmp_path: Path) -> None:
    calls = recorded()
    calls[0] = call("c1", [SYSTEM, USER], "hello", [1, 2, 3], [4, 5], logprobs=None)
    calls[1] = call("c2", calls[1].request["messages"], "left", [1, 99, 3, 4, 5, 6], [7])
    source = [forked(calls)]
    _, counts = export("v1-leaves", source, tmp_path / "all")
    assert (counts["breaks"], counts["repeated_tokens"], counts["missing_logprobs"]) == (1, 5, 2)
    with pytest.raises(StoreError, match=r"1 breaks .* 1 model messages without"):
        export("v1-leaves", source, tmp_path / "refused", require_tokens=True)
    export("v1-leaves", [forked(recorded())], tmp_path / "exact", require_tokens=True)


@pytest.mark.parametrize("options", [{"require_tokens": True}, {"advantage": "process"}])
def test_a_format_of_messages_refuses_options_of_tokens(
    tmp_path: Path, options: dict[str, object]
) -> None:
    with pytest.raises(UsageError):
        export("sft", [], tmp_path / "no", **options)


@pytest.mark.parametrize("estimator", ["inter", "intra+inter"])
def test_the_advantage_over_a_group_needs_all_its_trees(tmp_path: Path, estimator: str) -> None:
    source = [forked(recorded(), rollout_id=f"r{n}") for n in range(2)]
    again = [forked(recorded(), rollout_id=f"r{n}") for n in range(2)]
    text, _ = export("v1-graph", source, tmp_path / "one", advantage=estimator)
    assert text.count('"advantages"') == 6
    assert export("v1-graph", again, tmp_path / "two", advantage=estimator)[0] == text
    other = forked([each.model_copy(update={"policy_version": "v9"}) for each in recorded()])
    text, _ = export("v1-leaves", [source[0], other], tmp_path / "apart", advantage="inter")
    assert '"advantages"' not in text


@pytest.mark.parametrize("api", ["openai-responses", "anthropic-messages"])
def test_an_agent_of_another_wire_is_as_trainable_as_one_that_speaks_chat(api: str) -> None:
    def translated(one: ModelCall) -> ModelCall:
        update = {
            "api": api,
            "upstream_api": "openai-chat",
            "upstream_request": one.request,
            "upstream_response": one.response,
            "request": {"input": "in the agent's own words"},
            "response": {"output": []},
        }
        return one.model_copy(update=update)

    plain = samples_of(forked(recorded()))
    assert samples_of(forked([translated(each) for each in recorded()])) == plain


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"content": "no role"}]},
        {"messages": ["text"]},
        {"messages": {"role": "user"}},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]},
    ],
)
def test_a_request_that_is_no_chat_costs_its_tokens_and_nothing_else(request_: dict[str, object]):
    calls = recorded()
    calls[1] = calls[1].model_copy(update={"request": request_})
    left, right = samples_of(forked(calls))
    assert [span.message["content"] for span in left.spans][-1] == "left"
    assert left.missing_logprobs == 1
    assert right == samples_of(forked(recorded()))[1]


def test_odd_tools_and_settings_of_an_agent_are_left_out(tmp_path: Path) -> None:
    odd = {"tools": [1, {"function": "x"}, {"function": {"name": 3, "parameters": 4}}]}
    calls = [
        each.model_copy(update={"request": {**each.request, **odd, "temperature": "hot"}})
        for each in recorded()
    ]
    text, _ = export("v1-leaves", [forked(calls)], tmp_path / "all")
    assert '"name":"3"' in text
