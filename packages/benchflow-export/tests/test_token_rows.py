"""A group of rollouts becomes rows of tokens; what must not be trained on is left out by name."""

import asyncio
import base64
from collections import Counter
from typing import Any

import pytest
from benchflow_contracts import (
    FinishedRollout,
    NodeError,
    RoutedExperts,
    Sample,
    SampleSpan,
    UsageError,
    VerifyResult,
)
from benchflow_contracts.gateway import SamplingMask
from benchflow_export import (
    ExcludedLeaf,
    RequestedGroups,
    RolloutGroup,
    StoredGroups,
    TrainerOptions,
    credit_rows,
    episode,
    fill_rows,
    group_rollouts,
    response_rows,
    samples_of,
    version_number,
)
from forked_calls import SYSTEM, USER, call, forked, recorded, said
from hypothesis import given
from hypothesis import strategies as st

USERS = {"a": 1.0, "b": 0.0, "c": 0.0}


def versioned(*versions: str | None) -> list[Any]:
    """Calls by these weights: of the first step, of the left leaf, of the right leaf."""
    return [
        each.model_copy(update={"policy_version": version})
        for each, version in zip(recorded(), versions, strict=True)
    ]


def group(*rollouts: FinishedRollout, **options: Any) -> RolloutGroup:
    return group_rollouts("t", rollouts, TrainerOptions(**options))


def rows_of(*rollouts: FinishedRollout, **options: Any):
    return credit_rows(group(*rollouts, **options), TrainerOptions(**options))


def reasons(leaves: Any) -> list[str]:
    return [leaf.reason for leaf in leaves]


def test_a_leaf_is_a_row_of_the_tokens_that_the_model_saw_with_our_advantage() -> None:
    rows, excluded = rows_of(forked(versioned("v7", "v7", "v7")), advantage="intra")
    assert not excluded
    left, right = rows
    assert left.token_ids == [1, 2, 3, 4, 5, 6, 7]
    assert left.loss_mask == [0, 0, 0, 1, 1, 0, 1]
    assert left.logprobs == [0, 0, 0, -0.5, -0.5, 0, -0.5]
    assert left.advantage == -right.advantage == pytest.approx(0.5 / (0.5**0.5 + 1e-6))
    assert (left.version, left.shared_prefix, left.prompt_messages) == (7, "per_leaf", 2)


def test_a_shared_prefix_is_trained_on_once_with_the_mean_of_its_leaves() -> None:
    rows, _ = rows_of(forked(versioned("1", "1", "1")), advantage="intra", shared_prefix="once")
    trained = [
        (token, row.advantage)
        for row in rows
        for token, flag in zip(row.token_ids, row.loss_mask, strict=True)
        if flag
    ]
    assert [token for token, _ in trained] == [4, 5, 7, 9]
    assert dict(trained)[4] == pytest.approx(0)
    assert rows[0].token_ids == [1, 2, 3, 4, 5]


def test_each_advantage_of_a_leaf_has_a_row_of_its_own() -> None:
    rows, excluded = rows_of(forked(versioned("1", "1", "1")), advantage="process")
    # Above the fork no branch is better than another: those tokens have no advantage.
    assert [(row.loss_mask, row.advantage) for row in rows] == [
        ([0, 0, 0, 0, 0, 0, 1], 0.5),
        ([0, 0, 0, 0, 0, 0, 1], -0.5),
    ]
    assert not excluded


def test_independent_rollouts_have_the_advantage_of_their_group() -> None:
    one, two = (forked(versioned("1", "1", "1"), rollout_id=f"r{n}") for n in range(2))
    for rollout, reward in ((one, 1.0), (two, 0.0)):
        for leaf in rollout.tree.leaves:
            leaf.results["reward"] = VerifyResult(reward=reward)
    rows, _ = rows_of(one, two)
    assert [row.advantage > 0 for row in rows] == [True] * 3 + [False] * 3
    with pytest.raises(UsageError, match="none"):
        rows_of(one, two, advantage="none")


@pytest.mark.parametrize("shared_prefix", ["once", "per_leaf"])
def test_a_group_without_a_baseline_trains_on_nothing_and_says_so(shared_prefix: str) -> None:
    rollout = forked(versioned("1", "1", "1"))
    rows, excluded = rows_of(rollout, advantage="inter", shared_prefix=shared_prefix)
    assert (rows, reasons(excluded)) == ([], ["no-advantage"] * 2)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("7", 7), ("v7", 7), ("policy-v7", 7), ("lora@v12", 12), ("step_40", 40)],
        *[("qwen3-8", None), ("", None), ("v", None), ("v7b", None), ("v-7", None)],
        ("9" * 99, None),
    ],
)
def test_the_version_of_weights_is_read_from_their_name(text: str, number: int | None) -> None:
    assert version_number(text) == number


def test_a_sample_without_a_version_is_trained_on_only_if_one_is_known_or_assumed() -> None:
    rollout = forked(versioned("qwen3-8", "qwen3-8", "qwen3-8"))
    rows, excluded = rows_of(rollout)
    assert (rows, reasons(excluded)) == ([], ["no-version"] * 2)
    assert excluded[0].detail == "qwen3-8"
    rows, _ = rows_of(rollout, assumed_version=3)
    assert {row.version for row in rows} == {3}
    rows, _ = credit_rows(group_rollouts("t", [rollout], policy_version=5))
    assert {row.version for row in rows} == {5}


def test_a_sample_of_several_versions_has_the_oldest_and_is_counted() -> None:
    rollout = forked(versioned("v7", "v8", "v7"))
    made = group(rollout)
    assert made.counts()["mixed_versions"] == 1
    assert [row.version for row in credit_rows(made)[0]] == [7, 7]
    made = group(rollout, mixed_versions="mask")
    assert (len(made.samples), reasons(made.excluded)) == (1, ["unscored", "mixed-versions"])


def test_a_message_whose_weights_changed_meanwhile_is_trained_on_only_if_allowed() -> None:
    calls = versioned("v7", "v7", "v7")
    calls[1] = calls[1].model_copy(update={"end_policy_version": "v8"})
    rollout = forked(calls)
    made = group(rollout)
    assert [sample.policy_versions for sample in made.samples] == [("v7", "v8"), ("v7",)]
    assert (made.counts()["mixed_calls"], made.counts()["mixed_versions"]) == (1, 1)
    assert [row.loss_mask for row in rows_of(rollout, advantage="intra")[0]] == [
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1, 0, 1],
    ]
    allowed = rows_of(rollout, advantage="intra", mixed_calls="train")[0]
    assert [row.loss_mask for row in allowed] == [[0, 0, 0, 1, 1, 0, 1]] * 2
    assert {row.version for row in allowed} == {7}
    text = allowed[0].sample.model_dump_json()
    assert Sample.model_validate_json(text) == allowed[0].sample


def test_the_experts_of_each_token_reach_the_rows_of_a_trainer() -> None:
    calls = versioned("1", "1", "1")
    for at, each in enumerate(calls):
        read = [*(each.prompt_token_ids or ()), *(each.completion_token_ids or ())][:-1]
        data = base64.b64encode(bytes(read)).decode()
        experts = RoutedExperts(data=data, shape=(len(read), 1, 1))
        calls[at] = each.model_copy(update={"routed_experts": experts})
    left, right = samples_of(forked(calls))
    # No engine has a row for the last token of an answer: it is that of the token before, until
    # the next call reads the token.
    assert [row.routed_experts for row in response_rows(left)] == [
        [[[1]], [[2]], [[3]], [[4]], [[5]], [[6]], [[6]]]
    ]
    assert left.spans[0] == right.spans[0]
    calls[2] = calls[2].model_copy(update={"routed_experts": None})
    left, right = samples_of(forked(calls))
    assert response_rows(left)[0].routed_experts is not None
    assert response_rows(right)[0].routed_experts is None


def test_the_sampling_mask_of_a_call_reaches_the_formats_that_have_a_place_for_it() -> None:
    calls = versioned("1", "1", "1")
    masked = SamplingMask.of([[each, 0] for each in calls[1].completion_token_ids or ()])
    calls[1] = calls[1].model_copy(update={"sampling_mask": masked})
    rollout = forked(calls)
    left, right = samples_of(rollout)
    assert [each.sampling_mask for each in left.spans] == [*[None] * 4, masked]
    assert (left.has_sampling_masks, right.has_sampling_masks) == (True, False)
    graph = episode([left, right], {call.id: call for call in calls}, "leaves")
    assert graph is not None
    info = [trace["info"]["benchflow"] for trace in graph["traces"]]
    assert info[0]["node_sampling_masks"][-1] == masked.tolist()
    assert "node_sampling_masks" not in info[1]
    assert group_rollouts("task", [rollout]).counts()["sampling_masks"] == 1


def test_unscored_tampered_and_failed_leaves_never_have_a_row() -> None:
    rollout = forked(versioned("1", "1", "1"))
    left, right, lost = rollout.tree.leaves
    left.results["reward"] = VerifyResult(
        reward=1.0, meta={"integrity": {"grade": "tampered", "findings": []}}
    )
    right.results["reward"] = VerifyResult.unscored("the verifier died")
    lost.error = NodeError(boundary="agent", type="AgentTimeoutError", message="no end")
    made = group(rollout)
    assert made.samples == ()
    assert reasons(made.excluded) == ["tampered", "unscored", "failed"]
    assert [leaf.reward for leaf in made.excluded] == [None] * 3
    assert str(made.excluded[1]) == "r/n3: unscored: the verifier died"
    assert made.counts() == {
        "excluded_tampered": 1,
        "excluded_unscored": 1,
        "excluded_failed": 1,
        "samples": 0,
    }


def test_a_counterfactual_leaf_has_a_row_on_request_only() -> None:
    rollout = forked(versioned("1", "1", "1"), answers=USERS)
    made = group(rollout)
    assert reasons(made.excluded) == ["unscored", "counterfactual"]
    assert [sample.leaf for sample in made.samples] == ["n2"]
    assert len(group(rollout, counterfactual=True).samples) == 2


def test_a_truncated_sample_counts_in_the_baseline_and_is_not_trained_on() -> None:
    calls = versioned("1", "1", "1")
    choice = {"message": said("left"), "finish_reason": "length"}
    calls[1] = calls[1].model_copy(update={"response": {"choices": [choice]}})
    made = group(forked(calls), advantage="intra")
    [row], _ = credit_rows(made, TrainerOptions(advantage="intra"))
    assert (row.sample.leaf, row.advantage < 0) == ("n3", True)
    assert [(leaf.reason, leaf.reward) for leaf in made.excluded] == [
        ("unscored", None),
        ("truncated", 1.0),
    ]
    made = group(forked(calls), truncated="train")
    assert (len(made.samples), made.counts()["truncated"]) == (2, 1)


def test_a_retokenised_sample_is_two_rows_or_refused() -> None:
    calls = versioned("1", "1", "1")
    broken = call("c2", calls[1].request["messages"], "left", [1, 99, 3, 4, 5, 6], [7])
    calls[1] = broken.model_copy(update={"policy_version": "1"})
    made = group(forked(calls), advantage="intra")
    rows, _ = credit_rows(made, TrainerOptions(advantage="intra"))
    assert [row.token_ids for row in rows if row.sample.leaf == "n2"] == [
        [1, 2, 3, 4, 5],
        [1, 99, 3, 4, 5, 6, 7],
    ]
    assert (made.counts()["breaks"], made.counts()["repeated_tokens"]) == (1, 5)
    made = group(forked(calls), require_tokens=True)
    assert reasons(made.excluded) == ["unscored", "inexact"]


def test_tokens_without_log_probabilities_are_masked() -> None:
    calls = versioned("1", "1", "1")
    silent = call("c1", [SYSTEM, USER], "hello", [1, 2, 3], [4, 5], logprobs=None)
    calls[0] = silent.model_copy(update={"policy_version": "1"})
    made = group(forked(calls), advantage="intra")
    rows, _ = credit_rows(made, TrainerOptions(advantage="intra"))
    assert [row.loss_mask for row in rows] == [[0] * 6 + [1]] * 2
    assert made.counts()["missing_logprobs"] == 2
    assert reasons(group(forked([])).excluded) == ["unscored", "no-tokens", "no-tokens"]


def test_auxiliary_and_replayed_calls_are_not_trained_on() -> None:
    calls = versioned("1", "1", "1")
    aux = call("c0", [SYSTEM], "a title", [50], [51, 52], purpose="aux")
    calls[1] = calls[1].model_copy(update={"replayed": True})
    rollout = forked([*calls, aux])
    first = rollout.tree.index["n1"]
    assert first.step is not None
    first.step = first.step.model_copy(update={"model_calls": ("c0", "c1")})
    rows, _ = rows_of(rollout, advantage="intra")
    assert not {51, 52} & {token for row in rows for token in row.token_ids}
    # The left leaf's own message was replayed; the common one before it was sampled.
    assert [row.token_ids for row in rows] == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 8, 9]]


def test_a_response_begins_with_the_first_sampled_token() -> None:
    left, _ = samples_of(forked(recorded()))
    [row] = response_rows(left)
    assert (row.prompt_ids, row.response_ids) == ([1, 2, 3], [4, 5, 6, 7])
    assert row.response_mask == [1, 1, 0, 1]
    assert row.logprobs == [-0.5, -0.5, 0.0, -0.5]


def test_a_trainer_gets_as_many_leaves_as_it_asks_for_and_knows_which_are_lost() -> None:
    trees = [forked(versioned("1", "1", "1"), rollout_id=f"r{n}") for n in range(2)]
    made = group(*trees)
    two, surplus = fill_rows(made, 2)
    # One leaf of each tree before a second one.
    assert [(leaf.tree, leaf.leaf) for leaf in two] == [("r0", "n2"), ("r1", "n2")]
    assert surplus == 2
    rows, surplus = fill_rows(made, 8)
    lost = [row for row in rows if isinstance(row, ExcludedLeaf)]
    assert reasons(lost) == ["unscored", "unscored", "missing", "missing"]
    assert (len(rows), surplus) == (8, 0)


def test_stored_rollouts_are_used_once_in_groups_of_the_same_weights() -> None:
    lost = forked([], rollout_id="r9")
    for leaf in lost.tree.leaves:
        leaf.results.clear()
    rollouts = [forked(versioned("1", "1", "1"), rollout_id=f"r{n}") for n in range(2)]
    newer = forked(versioned("2", "2", "2"), rollout_id="r5")
    reads: list[int] = []

    def read() -> Any:
        reads.append(1)
        return iter([lost, *rollouts, newer])

    async def use() -> list[RolloutGroup]:
        source = StoredGroups(read)
        first = await source.request("t", 4)
        rest = [each async for each in source.groups()]
        with pytest.raises(UsageError, match="were used"):
            await source.request("t", 1)
        with pytest.raises(UsageError, match="no stored rollout has the task 'other'"):
            await source.request("other", 1)
        return [first, *rest]

    first, second = asyncio.run(use())
    assert {sample.tree for sample in first.samples} == {"r0", "r1"}
    assert reasons(first.excluded) == ["unscored"] * 5
    assert {sample.tree for sample in second.samples} == {"r5"}
    assert reads == [1]


class Server:
    """Answers each request when it is let, and counts what is open."""

    def __init__(self) -> None:
        self.open = 0
        self.most = 0
        self.gate = asyncio.Event()
        self.two_open = asyncio.Event()
        self.versions: list[int] = []

    async def request(self, task_id: str, size: int) -> RolloutGroup:
        if task_id == "bad":
            raise UsageError("no such task")
        self.open += 1
        self.most = max(self.most, self.open)
        if self.open == 2:
            self.two_open.set()
        try:
            await self.gate.wait()
            return RolloutGroup(task_id, ())
        finally:
            self.open -= 1

    def set_policy_version(self, version: int) -> None:
        self.versions.append(version)


def test_groups_of_tasks_are_requested_in_turn_and_cancelled_with_the_iterator() -> None:
    async def use() -> None:
        server = Server()
        server.gate.set()
        source = RequestedGroups(server, ["a", "b"], 4, in_flight=3, epochs=2)
        assert sorted([each.task_id async for each in source.groups()]) == ["a", "a", "b", "b"]
        source.set_policy_version(7)
        assert (server.most <= 3, server.versions) == (True, [7])

        blocked = Server()
        source = RequestedGroups(blocked, ["a"], 4, in_flight=2)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(anext(source.groups()))
            await blocked.two_open.wait()
            waiting.cancel()
        assert blocked.open == 0

        with pytest.raises(UsageError, match="no such task"):
            await anext(RequestedGroups(Server(), ["bad"], 1).groups())

    asyncio.run(use())
    with pytest.raises(UsageError, match="groups of 0 of 1 tasks"):
        RequestedGroups(Server(), ["a"], 0)


ADVANTAGES = st.sampled_from([None, -1.0, 0.0, 0.5])


@st.composite
def trees(draw: st.DrawFn) -> list[Sample]:
    """Leaves of one tree: common spans, then their own, with breaks and untrainable messages."""
    template = samples_of(forked(versioned("1", "1", "1")))[0]
    unused = iter(range(10_000))

    def span(name: str, parent: str | None, start: int) -> SampleSpan:
        kind = draw(st.sampled_from(["prompt", "user", "sampled", "replayed"]))
        size, scaffold = draw(st.integers(0, 3)), draw(st.integers(0, 2))
        has_logprobs = kind in ("sampled", "replayed") and draw(st.booleans())
        return SampleSpan(
            id=name,
            parent=parent,
            node=name,
            kind=kind,
            message={"role": "user", "content": name},
            start=start,
            token_ids=tuple(next(unused) for _ in range(scaffold + size)),
            scaffold=scaffold,
            logprobs=(-0.5,) * size if has_logprobs else (),
            policy_version="1",
            finished_at=0,
        )

    def path(prefix: list[SampleSpan], names: list[str]) -> list[SampleSpan]:
        spans = list(prefix)
        for name in names:
            begins = not spans or draw(st.integers(0, 4)) == 0
            last = None if begins else spans[-1]
            spans.append(span(name, last and last.id, 0 if last is None else last.end))
        return spans

    common = path([], [f"c{n}" for n in range(draw(st.integers(0, 3)))])
    leaves = []
    for leaf in range(draw(st.integers(1, 3))):
        spans = path(common, [f"l{leaf}.{n}" for n in range(draw(st.integers(1, 3)))])
        marks = tuple(draw(ADVANTAGES) for _ in spans)
        update = {"leaf": f"l{leaf}", "spans": tuple(spans), "advantages": {"process": marks}}
        leaves.append(template.model_copy(update=update))
    return leaves


@given(tree=trees(), shared_prefix=st.sampled_from(["once", "per_leaf"]))
def test_a_token_is_trained_on_once_in_a_leaf_or_once_in_a_tree(
    tree: list[Sample], shared_prefix: Any
) -> None:
    options = TrainerOptions(advantage="process", shared_prefix=shared_prefix)
    rows, _ = credit_rows(RolloutGroup("t", tuple(tree)), options)
    trained: Counter[tuple[str, int]] = Counter()
    for row in rows:
        assert len(row.token_ids) == len(row.loss_mask) == len(row.logprobs)
        assert row.loss_mask[-1] == 1
        # A row is the beginning of what the model saw.
        whole = [sequence.token_ids for sequence in row.sample.sequences()]
        assert any(row.token_ids == tokens[: len(row.token_ids)] for tokens in whole)
        leaf = row.sample.leaf if shared_prefix == "per_leaf" else ""
        for token, flag, logprob in zip(row.token_ids, row.loss_mask, row.logprobs, strict=True):
            assert logprob == (-0.5 if flag else 0)
            trained[leaf, token] += flag
    expected: dict[tuple[str, int], bool] = {}
    for sample in tree:
        for sequence in sample.sequences("process"):
            own = zip(sequence.token_ids, sequence.token_advantages, strict=True)
            for at, (token, advantage) in enumerate(own):
                leaf = sample.leaf if shared_prefix == "per_leaf" else ""
                known = expected.get((leaf, token), False)
                # Nothing predicts the first token of a sequence.
                expected[leaf, token] = known or (at > 0 and advantage is not None)
    assert {key for key, count in trained.items() if count} == {
        key for key, is_trained in expected.items() if is_trained
    }
    assert max(trained.values(), default=0) <= 1
