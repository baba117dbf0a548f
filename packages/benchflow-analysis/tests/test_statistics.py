"""The statistics agree with scipy, and with answers that are known."""

import math
from statistics import fmean, variance

import numpy as np
import pytest
from benchflow_analysis.statistics import (
    Prediction,
    Trial,
    answer,
    bootstrap,
    calibrate,
    delta_variance,
    detectable_delta,
    group_failures,
    held_out,
    holm,
    mean_estimate,
    paired_delta,
    pass_estimates,
    plan_tasks,
    scored_rewards,
    spending,
    student_t,
    tasks_needed,
    variance_parts,
    wilson,
)
from benchflow_analysis.statistics.distributions import (
    binomial_two_sided,
    student_t_cdf,
    student_t_quantile,
    student_t_two_sided,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats


def trial(task: str, repeat: int = 0, reward: float | None = 1.0, **fields) -> Trial:
    values = {
        "job": "j",
        "index": repeat,
        "slot": f"{task}#{repeat}",
        "variant": "v",
        "attempt": 1,
        "status": "failed" if reward is None else "completed",
        **fields,
    }
    return Trial(task=task, repeat=repeat, reward=reward, scored=reward is not None, **values)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 19, 99, 1_000, 1e6])
@pytest.mark.parametrize("p", [0.001, 0.025, 0.1, 0.5, 0.8, 0.975, 0.9995])
def test_quantiles_of_student_t_are_those_of_scipy(df, p):
    expected = float(stats.t.ppf(p, df))
    assert student_t_quantile(p, df) == pytest.approx(expected, rel=1e-8, abs=1e-10)


@given(st.floats(-1e3, 1e3), st.integers(1, 10_000))
def test_probabilities_of_student_t_are_those_of_scipy(t, df):
    assert student_t_cdf(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-10)
    assert student_t_two_sided(t, df) == pytest.approx(2 * stats.t.sf(abs(t), df), abs=1e-10)


@given(st.integers(0, 200), st.integers(0, 200))
def test_the_exact_binomial_test_is_that_of_scipy(wins, losses):
    if wins + losses:
        expected = stats.binomtest(wins, wins + losses).pvalue
        assert binomial_two_sided(wins, wins + losses) == pytest.approx(expected, abs=1e-10)
    else:
        assert binomial_two_sided(0, 0) == 1


@given(st.integers(1, 500), st.data())
def test_wilsons_interval_is_that_of_scipy(trials, data):
    successes = data.draw(st.integers(0, trials))
    found = wilson(successes, trials, 0.9)
    expected = stats.binomtest(successes, trials).proportion_ci(0.9, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-10)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=50).filter(lambda v: np.std(v) > 1e-6))
def test_students_interval_is_that_of_scipy(values):
    found = student_t(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)


def test_a_paired_delta_is_the_paired_t_test_over_task_means():
    rng = np.random.default_rng(3)
    first = {f"t{i}": rng.random(4).tolist() for i in range(8)}
    second = {f"t{i}": rng.random(6).tolist() for i in range(8)}
    found = paired_delta(first, second)
    means = [[fmean(rewards[task]) for task in first] for rewards in (second, first)]
    expected = stats.ttest_rel(*means)
    low, high = expected.confidence_interval()
    assert found is not None
    assert found.interval is not None
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), rel=1e-9)
    assert found.mcnemar is None


def test_mcnemar_is_exact_where_each_task_was_tried_once():
    first = {f"t{i}": [float(i < 12)] for i in range(20)}
    second = {f"t{i}": [float(i >= 10)] for i in range(20)}
    found = paired_delta(first, second)
    assert found is not None
    assert found.mcnemar is not None
    assert (found.mcnemar.wins, found.mcnemar.losses) == (8, 10)
    assert found.p_value == found.mcnemar.p_value
    assert found.p_value == pytest.approx(stats.binomtest(8, 18).pvalue)


def test_the_bootstrap_is_seeded_and_near_that_of_scipy():
    values = np.random.default_rng(5).normal(size=30).tolist()
    first, second = (bootstrap(values, confidence=0.95, seed=seed) for seed in (1, 1))
    assert first == second
    assert first is not None
    peer = stats.bootstrap((values,), np.mean, method="percentile", rng=2).confidence_interval
    assert (first.low, first.high) == pytest.approx((peer.low, peer.high), abs=0.02)
    assert bootstrap([1.0], confidence=0.95, seed=1) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_never_below_the_p_value_nor_above_bonferroni(p_values):
    adjusted = holm(p_values)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    assert [adjusted[at] for at in order] == sorted(adjusted)
    for before, after in zip(p_values, adjusted, strict=True):
        assert before <= after <= min(1.0, len(p_values) * before) + 1e-12


def test_holm_of_a_known_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(
    ("tasks", "repeats", "reason"),
    [(1, 8, "one task"), (5, 1, "5 pairs"), (5, 2, None), (10, 1, None), (2, 8, None)],
)
def test_an_interval_is_refused_where_there_is_too_little(tasks, repeats, reason):
    first = {f"t{i}": [0.0] * repeats for i in range(tasks)}
    second = {f"t{i}": [i / 10] * repeats for i in range(tasks)}
    found = paired_delta(first, second)
    assert found is not None
    assert (found.interval is None) is (reason is not None)
    if reason is not None:
        assert reason in (found.refused or "")


def test_equal_deltas_have_no_interval():
    first = {f"t{i}": [0.25] for i in range(20)}
    second = {f"t{i}": [0.5] for i in range(20)}
    found = paired_delta(first, second)
    assert found is not None
    assert found.interval is None
    assert found.p_value is None
    assert "same delta" in (found.refused or "")
    assert answer(found, None, margin=0.05) == "unclear"


def test_an_answer_is_tied_only_within_the_margin():
    first = {f"t{i}": [0.5, 0.5] for i in range(40)}
    second = {f"t{i}": [0.5 + 0.01 * (-1) ** i, 0.5] for i in range(40)}
    found = paired_delta(first, second)
    assert found is not None
    assert answer(found, found.p_value, margin=0.05) == "tied"
    assert answer(found, found.p_value, margin=0.0001) == "unclear"
    third = {
        task: [r + 0.1 * (1 + at % 3) for r in each]
        for at, (task, each) in enumerate(first.items())
    }
    better, worse = paired_delta(first, third), paired_delta(third, first)
    assert better is not None
    assert worse is not None
    assert answer(better, better.p_value, margin=0.05) == "better"
    assert answer(worse, worse.p_value, margin=0.05) == "worse"
    assert answer(better, 0.2, margin=0.05) == "unclear"


def test_tasks_of_one_variant_alone_are_counted_and_left_out():
    found = paired_delta({"a": [1.0], "b": [0.0]}, {"b": [1.0], "c": [0.0]})
    assert found is not None
    assert (found.tasks, found.unpaired, found.delta) == (1, 2, 1.0)
    assert paired_delta({"a": [1.0]}, {"b": [1.0]}) is None


def test_a_mean_averages_repeats_within_their_task_first():
    found = mean_estimate({"a": [1.0], "b": [0.0, 0.0, 0.0], "c": [0.5, 0.0]})
    assert found is not None
    assert found.mean == pytest.approx((1 + 0 + 0.25) / 3)
    assert (found.tasks, found.rollouts) == (3, 6)
    assert found.interval is not None
    assert found.interval.method == "student_t"
    assert mean_estimate({}) is None


def test_rates_have_wilsons_interval():
    once = mean_estimate({f"t{i}": [float(i < 5)] for i in range(20)})
    assert once is not None
    assert once.interval == wilson(5, 20)
    # The repeats of one task are independent; those of several tasks are not.
    repeats = mean_estimate({"t": [1.0, 0.0, 1.0]})
    assert repeats is not None
    assert repeats.interval == wilson(2, 3)


def test_a_mean_without_a_spread_has_no_interval():
    one, same = mean_estimate({"t": [0.3]}), mean_estimate({"t": [0.3], "u": [0.3]})
    assert one is not None
    assert same is not None
    assert (one.interval, one.refused) == (None, "only one value")
    assert (same.interval, same.refused) == (None, "all values are equal")


def test_pass_at_k_starts_at_one_and_leaves_out_tasks_with_fewer_rollouts():
    rewards = {"a": [1.0, 0.0], "b": [1.0], "c": [0.0, 0.4]}
    one, two = pass_estimates(rewards, [1, 2, 3], 1.0)
    assert (one.k, one.value, one.tasks) == (1, pytest.approx(0.5), 3)
    assert (two.k, two.value, two.tasks) == (2, 0.5, 2)
    assert pass_estimates(rewards, [1], 0.4)[0].value == pytest.approx((0.5 + 1 + 0.5) / 3)


def test_variance_parts_recover_what_made_the_rewards():
    rng = np.random.default_rng(7)
    centres = rng.normal(0, 0.3, 4_000)
    rewards = {f"t{i}": (c + rng.normal(0, 0.2, 5)).tolist() for i, c in enumerate(centres)}
    parts = variance_parts(rewards)
    assert parts.within == pytest.approx(0.04, rel=0.05)
    assert parts.between == pytest.approx(0.09, rel=0.06)
    once = variance_parts({"a": [0.0], "b": [1.0]})
    assert (once.within, once.between, once.of_task_means) == (None, None, 0.5)


@pytest.mark.parametrize("delta", [0.03, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("power", [0.8, 0.9])
def test_the_needed_tasks_have_the_wanted_power(delta, power):
    tasks, sd = tasks_needed(delta, 0.09, power=power), 0.3
    found = []
    for n in (tasks - 1, tasks):
        limit = stats.t.ppf(0.975, n - 1)
        shift = delta * math.sqrt(n) / sd
        found.append(stats.nct.sf(limit, n - 1, shift) + stats.nct.cdf(-limit, n - 1, shift))
    # At most one task too few or too many.
    assert found[0] < power + 0.03
    assert found[1] > power - 0.02
    assert detectable_delta(tasks, 0.09, power=power) == pytest.approx(delta, rel=0.08)


def test_repeats_help_only_against_the_variance_within_tasks():
    rng = np.random.default_rng(11)
    first, second = (
        {f"t{i}": rng.binomial(1, p, 6).astype(float).tolist() for i, p in enumerate(chances)}
        for chances in [np.linspace(0.2, 0.8, 50)] * 2
    )
    spread = delta_variance(first, second)
    assert spread is not None
    assert spread.within > spread.between
    plans = plan_tasks(spread, 0.1)
    assert [plan.repeats for plan in plans] == [1, 2, 4, 8]
    assert [plan.tasks for plan in plans] == sorted((plan.tasks for plan in plans), reverse=True)
    assert all(plan.rollouts == 2 * plan.repeats * plan.tasks for plan in plans)
    assert delta_variance({"a": [1.0]}, {"a": [0.0]}) is None
    assert tasks_needed(0.1, 0.0) == 2


def test_the_variance_of_deltas_is_that_of_the_task_means():
    rng = np.random.default_rng(13)
    first, second = ({f"t{i}": rng.random(3).tolist() for i in range(9)} for _ in range(2))
    spread = delta_variance(first, second)
    deltas = [fmean(second[task]) - fmean(first[task]) for task in first]
    assert spread is not None
    if spread.between:
        assert spread.of_mean(3) == pytest.approx(variance(deltas))


def test_calibrated_values_lie_near_what_is_observed():
    rng = np.random.default_rng(17)
    chances = rng.random(20_000)
    found = calibrate([Prediction(p, float(rng.random() < p)) for p in chances], bins=10)
    assert found is not None
    assert abs(found.bias) < 0.01
    assert len(found.bins) == 10
    assert all(abs(each.predicted - each.observed) < 0.05 for each in found.bins)
    assert calibrate([]) is None
    only = calibrate([Prediction(0.5, 1.0)])
    assert only is not None
    assert (only.n, only.bias, only.rmse) == (1, -0.5, 0.5)


def test_a_value_is_held_against_the_other_rollouts_of_its_task():
    pairs = held_out({"a": [1.0, 0.0, 0.5], "b": [1.0]})
    assert [(each.predicted, each.observed) for each in pairs] == [
        (1.0, 0.25),
        (0.0, 0.75),
        (0.5, 0.5),
    ]


def test_an_unscored_trial_is_in_no_reward_and_in_the_failures():
    trials = [
        trial("a", 0, 1.0),
        trial("a", 1, None, error_boundary="sandbox", error_type="CapacityError", rollout_id="r2"),
        trial("b", 0, None, error_boundary="sandbox", error_type="CapacityError", rollout_id="r1"),
        trial("b", 1, None, fingerprint="f" * 8),
        trial("c", 0, None, status="skipped_pruned"),
    ]
    assert scored_rewards(trials) == {"a": [1.0]}
    first, second = group_failures(trials)
    assert (first.fingerprint, first.trials, first.tasks) == ("sandbox:CapacityError", 2, 2)
    assert first.example == "r1"
    assert (second.fingerprint, second.error_type) == ("f" * 8, "unknown")


def test_spending_counts_what_is_not_known():
    trials = [
        trial("a", 0, 1.0, tokens_in=10, tokens_out=2, cost_usd=0.5, seconds=2.0),
        trial("a", 1, 0.0, tokens_in=5, tokens_out=1, cost_usd=0.25, seconds=4.0),
        trial("b", 0, 1.0),
    ]
    found = spending(trials, 1.0)
    assert (found.tokens_in, found.tokens_out, found.cost_usd) == (15, 3, 0.75)
    assert (found.unknown_tokens, found.unknown_cost) == (1, 1)
    # The pass of task b has no known cost, so that it is not a pass that was paid.
    assert (found.cost_per_pass, found.seconds) == (0.75, 3.0)
    nothing = spending(trials[2:], 1.0)
    assert (nothing.tokens_in, nothing.cost_usd, nothing.cost_per_pass) == (None, None, None)
