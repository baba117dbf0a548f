"""The analysis of jobs: variants, comparisons, tables and plots."""

import json
import re
import sys
from xml.etree import ElementTree as ET

import pytest
from benchflow_analysis import (
    AnalysisOptions,
    analyse,
    report_notes,
    report_tables,
    to_markdown,
    write_plot,
)
from benchflow_contracts import StoreError, UsageError, VerifyResult
from benchflow_store import GroupRecord, GroupVerdict, LostMember, append_group
from pydantic import ValidationError

TASKS = [f"t{at}" for at in range(20)]
BASE = {task: [float(at % 2), float(at % 3 == 0)] for at, task in enumerate(TASKS)}
BETTER = {task: [1.0, 1.0] for task in TASKS}
SAME = {task: values[::-1] for task, values in BASE.items()}


def test_variants_of_one_job_are_compared_with_the_first(write_facts):
    report = analyse([write_facts("j", {"base": BASE, "better": BETTER, "same": SAME})])
    assert [each.name for each in report.variants] == ["base", "better", "same"]
    better, same = report.comparisons
    assert (better.baseline, better.variant, better.answer) == ("base", "better", "better")
    assert better.paired is not None
    assert better.adjusted_p is not None
    assert better.adjusted_p >= (better.paired.p_value or 0)
    assert (same.answer, same.paired and same.paired.delta) == ("unclear", 0.0)
    assert report.jobs[0].view == "ranking"


def test_a_baseline_can_be_chosen_and_must_exist(write_facts):
    job = write_facts("j", {"base": BASE, "better": BETTER})
    report = analyse([job], AnalysisOptions(baseline="better"))
    assert [(each.baseline, each.variant) for each in report.comparisons] == [("better", "base")]
    assert report.comparisons[0].answer == "worse"
    with pytest.raises(UsageError, match="'nope' is not a variant"):
        analyse([job], AnalysisOptions(baseline="nope"))


def test_jobs_with_one_variant_are_named_by_their_job(write_facts):
    jobs = [write_facts("today", {"v": BASE}), write_facts("before", {"v": BETTER})]
    report = analyse(jobs)
    assert [each.name for each in report.variants] == ["today", "before"]
    assert report.comparisons[0].baseline == "today"
    several = [*jobs, write_facts("two", {"v": BASE, "w": BASE})]
    names = [each.name for each in analyse(several).variants]
    assert names == ["today:v", "before:v", "two:v", "two:w"]


def test_an_unscored_trial_is_counted_with_its_cause(write_facts):
    report = analyse([write_facts("j", {"v": {"a": [1.0, None], "b": [None, None]}})])
    (variant,) = report.variants
    assert (variant.trials, variant.scored, variant.unscored) == (4, 1, 3)
    assert variant.mean is not None
    assert (variant.mean.mean, variant.mean.tasks) == (1.0, 1)
    (failure,) = variant.failures
    assert (failure.fingerprint, failure.trials, failure.tasks) == ("ab12", 3, 2)
    assert variant.spending.cost_usd == 2.0


def test_a_job_without_a_score_has_a_report(write_facts):
    report = analyse([write_facts("j", {"v": {"a": [None]}, "w": {"a": [None]}})])
    assert report.variants[0].mean is None
    assert report.comparisons[0].paired is None
    text = to_markdown(report)
    assert "v has no scored trial" in text
    assert "w and v have no scored task in common" in text


def test_the_baseline_of_the_plan_is_the_default(write_facts):
    job = write_facts("j", {"first": BASE, "planned": BETTER}, baseline="planned")
    assert [(each.baseline, each.variant) for each in analyse([job]).comparisons] == [
        ("planned", "first")
    ]
    other = write_facts("k", {"v": BASE})
    assert {each.baseline for each in analyse([job, other]).comparisons} == {"j:planned"}
    absent = write_facts("l", {"first": BASE, "second": BETTER}, baseline="pending")
    assert analyse([absent]).comparisons[0].baseline == "first"


@pytest.mark.parametrize(
    ("design", "view", "title", "cell"),
    [
        ("paired", "ranking", "ranking of j, design paired", "better"),
        ("sweep", "best_config", "best_config of j, design sweep", '{"agent": "better"}'),
        ("regression", "trend", "trend of j, design regression", "1.000"),
    ],
)
def test_the_view_of_the_design_is_a_part_of_the_report(write_facts, design, view, title, cell):
    three = {"base": BASE, "better": BETTER, "same": SAME}
    report = analyse([write_facts("j", three, design=design)])
    assert report.jobs[0].view == view
    (table,) = (each for each in report_tables(report) if each.title == title)
    assert len(table.rows) == len(report.jobs[0].answer)
    assert any(cell in row for row in table.rows)
    json.dumps(report.model_dump(mode="json"), allow_nan=False)


def test_a_paired_job_of_two_variants_is_answered_by_wins_and_losses(write_facts):
    report = analyse([write_facts("j", {"base": BASE, "better": BETTER})])
    (row,) = report.jobs[0].answer
    assert (row["baseline"], row["variant"], row["losses"]) == ("base", "better", 0)
    assert not [table for table in report_tables(report) if table.title.startswith("win_loss")]


def test_several_jobs_are_compared_without_the_views_of_their_designs(write_facts):
    jobs = [write_facts(name, {"v": BASE}, design="regression") for name in "ab"]
    report = analyse(jobs)
    assert all(each.answer for each in report.jobs)
    assert not [each for each in report_tables(report) if "design" in each.title]


def test_the_plan_of_several_comparisons_needs_more_tasks(write_facts):
    other = {task: [values[0], 1.0] for task, values in BASE.items()}
    pair = analyse([write_facts("pair", {"base": BASE, "other": other})]).comparisons[0]
    three = write_facts("three", {"base": BASE, "other": other, "same": SAME})
    first = analyse([three]).comparisons[0]
    assert [each.tasks for each in first.plan] > [each.tasks for each in pair.plan]
    assert first.detectable_delta is not None
    assert pair.detectable_delta is not None
    assert first.detectable_delta > pair.detectable_delta


def test_variants_that_have_not_begun_count_for_the_view(write_facts):
    job = write_facts("j", {"base": BASE, "better": BETTER})
    with (job / "facts" / "variant_snapshots.jsonl").open("a") as file:
        file.write(json.dumps({"variant": "pending", "digest": "d", "config": {}}) + "\n")
    assert analyse([job]).jobs[0].view == "ranking"


def test_a_job_without_a_manifest_yet_has_a_report(write_facts):
    job = write_facts("j", {"base": BASE})
    (job / "facts" / "run_manifest.json").unlink()
    (progress,) = analyse([job]).jobs
    assert (progress.job, progress.slots, progress.resolved) == ("j", 40, 40)


def test_jobs_and_variants_with_one_joint_name_stay_apart(write_facts):
    jobs = [
        write_facts("a", {"b:c": {"t": [1.0]}, "d": {"t": [1.0]}}),
        write_facts("a:b", {"c": {"t": [0.0]}}),
    ]
    report = analyse(jobs)
    assert sorted(each.trials for each in report.variants) == [1, 1, 1]
    assert len({each.name for each in report.variants}) == 3


def test_a_job_without_a_resolved_slot_says_so(write_facts):
    report = analyse([write_facts("j", {}, slots=5)])
    assert report.variants == ()
    assert report_tables(report) == []
    assert list(report_notes(report)) == ["j is not complete: 0 of 5 slots are resolved"]
    text = to_markdown(report)
    assert "- no slot is resolved yet\n- j is not complete: 0 of 5" in text


def test_pruned_slots_are_not_trials(write_facts):
    job = write_facts("j", {"v": {"a": [1.0, None]}})
    path = job / "facts" / "trials.jsonl"
    path.write_text(path.read_text().replace('"failed"', '"skipped_pruned"'))
    (variant,) = analyse([job]).variants
    assert (variant.trials, variant.unscored, variant.pruned) == (1, 0, 1)


def test_the_same_input_and_seed_give_the_same_bytes(write_facts):
    job = write_facts("j", {"base": BASE, "better": BETTER})
    first, second, other = (
        analyse([job], AnalysisOptions(seed=seed)).model_dump_json() for seed in (3, 3, 4)
    )
    assert first == second
    assert first != other
    assert to_markdown(analyse([job])) == to_markdown(analyse([job]))


def test_pass_at_k_is_shown_for_doubles_and_for_all_repeats(write_facts):
    job = write_facts("j", {"v": {"a": [1.0] * 6, "b": [0.0] * 6}})
    (variant,) = analyse([job]).variants
    assert [each.k for each in variant.pass_at_k] == [1, 2, 4, 6]
    report = analyse([job], AnalysisOptions(k=(3, 9)))
    assert [(each.k, each.value) for each in report.variants[0].pass_at_k] == [(3, 0.5)]
    assert "pass@9 is not known: no task has 9 scored trials" in to_markdown(report)


def test_the_value_of_forked_rollouts_is_held_against_the_others(write_facts):
    job = write_facts("j", {"v": {"a": [0.5, 1.0], "b": [0.0, 0.25]}})
    signal = {"index": 0, "slot": "s", "variant": "v", "task": "a", "repeat": 0, "value": 0.5}
    with (job / "facts" / "metrics_long.jsonl").open("a") as file:
        for space in ("output", "action"):
            file.write(json.dumps({**signal, "name": f"space.{space}"}) + "\n")
    report = analyse([job])
    (variant,) = report.variants
    assert variant.calibration is not None
    assert (variant.calibration.n, variant.calibration.bias) == (4, 0.0)
    assert variant.rewards_by_space == {"action": 0.5, "output": 0.5}
    titles = [table.title for table in report_tables(report)]
    assert {"Calibration of V", "Reward by space"} < set(titles)


def test_a_job_of_version_0_8_is_analysed(write_records):
    jobs = [
        write_records("one", BASE),
        write_records("two", {**BETTER, "t0": [None, 1.0]}),
    ]
    report = analyse(jobs)
    assert [(each.name, each.unscored) for each in report.variants] == [("one", 0), ("two", 1)]
    assert report.comparisons[0].answer == "better"
    assert report.variants[0].rewards_by_space.keys() == {"output", "action"}
    assert report.variants[1].failures[0].error_type == "CapacityError"


def test_the_tables_say_what_is_missing(write_facts):
    job = write_facts("j", {"base": {"a": [1.0]}, "other": {"a": [0.0], "b": [1.0]}}, slots=9)
    with (job / "facts" / "trials.jsonl").open("a") as file:
        file.write('{"job"')
    notes = [note for table in report_tables(analyse([job])) for note in table.notes]
    assert "j is not complete: 3 of 9 slots are resolved" in notes
    assert "no interval for other: one task: how tasks differ is not known" in notes
    assert "other: 1 tasks of one variant alone are left out" in notes
    assert "j/trials.jsonl ends in an unfinished line of 6 bytes; it is left out" in notes


def test_markdown_has_a_table_for_each_part(write_facts):
    text = to_markdown(analyse([write_facts("j", {"base|x": BASE, "better": BETTER})]))
    assert text.startswith("# Analysis of `j`\n\n## Variants\n\n| variant | tasks |")
    assert "| base\\|x |" in text
    assert "[" in text.split("## Comparisons")[1].splitlines()[4]
    for title in ("Comparisons", "Tasks that find a delta of 0.050", "Variance", "Cost"):
        assert f"## {title}" in text


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_plot_is_a_file_with_the_same_bytes(write_facts, tmp_path, suffix):
    report = analyse([write_facts("j", {"base": BASE, "better": BETTER})])
    files = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for file in files:
        write_plot(report, file)
    first, second = (file.read_bytes() for file in files)
    assert first == second
    assert first.startswith(b"<svg" if suffix == ".svg" else b"\x89PNG")


HOSTILE = [
    "red\x1b[31m",
    "<script>alert(1)</script>",
    "![x](http://host/x.png)",
    "a|b`c\\",
    "line\n\n# title",
    "\u202egnp",
    "nul\x00\ufffe",
    "quote\"'\\' + datum",
    "**bold** $x$ ~s~",
]


def test_a_name_is_text_in_markdown(write_facts):
    job = write_facts("j", {name: {"t": [1.0, None]} for name in HOSTILE})
    text = to_markdown(analyse([job]))
    assert all(char.isprintable() or char == "\n" for char in text)
    plain = re.sub(r"\\.", "", text)
    assert not re.search(r"[<>*$~]|!\[|\]\(", plain)
    assert plain.count("`") == 2
    tables = [part.split("\n\n") for part in text.split("\n## ")[1:]]
    for table in tables:
        widths = {re.sub(r"\\.", "", row).count("|") for row in table[1].splitlines()}
        assert len(widths) == 1
    assert not re.search(r"^# (?!Analysis)", text, re.MULTILINE)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_in_a_plot(write_facts, tmp_path, name):
    rewards = {f"t{at}": [float(at % 2)] * 2 for at in range(6)}
    report = analyse([write_facts("j", {name: rewards, "other": rewards})])
    for suffix in (".svg", ".png"):
        write_plot(report, tmp_path / f"p{suffix}")
    root = ET.fromstring((tmp_path / "p.svg").read_bytes())
    tags = {each.tag.rsplit("}", 1)[-1] for each in root.iter()}
    assert not tags & {"script", "image", "a", "foreignObject"}


def test_a_plot_needs_a_score(write_facts, tmp_path):
    report = analyse([write_facts("j", {"v": {"a": [None]}})])
    with pytest.raises(UsageError, match="needs a scored trial"):
        write_plot(report, tmp_path / "a.svg")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_options_are_finite(value):
    for name in ("margin", "pass_reward"):
        with pytest.raises(ValidationError):
            AnalysisOptions(**{name: value})


def test_a_plot_that_cannot_be_written_is_refused(write_facts, tmp_path, monkeypatch):
    report = analyse([write_facts("j", {"base": BASE})])
    with pytest.raises(UsageError, match="not a plot file"):
        write_plot(report, tmp_path / "a.pdf")
    with pytest.raises(StoreError, match="cannot write"):
        write_plot(report, tmp_path / "no" / "a.svg")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match="vl-convert-python") as caught:
        write_plot(report, tmp_path / "a.svg")
    assert "benchflow-analysis[plots]" in str(caught.value.hint)


def test_a_group_reward_is_beside_the_own_rewards_and_in_no_other_number(write_facts):
    job = write_facts("j", {"base": BASE, "better": BETTER})
    before = analyse([job])
    for variant, rewards in (("base", (1.0, 0.0)), ("better", (1.0, None))):
        leaves = tuple(
            GroupVerdict(rollout=f"r{at}", leaf="n1", result=result_of(reward))
            for at, reward in enumerate(rewards)
        )
        lost = (LostMember(name="r9", reason="it failed"),)
        record = GroupRecord(
            task="t0", task_digest="d", variant=variant, reward="rank", leaves=leaves, lost=lost
        )
        append_group(job, record)
    report = analyse([job])
    base, better = report.group_rewards
    assert (base.name, base.group.mean, base.group.leaves, base.group.lost) == ("base", 0.5, 2, 1)
    assert (better.own_mean, better.group.mean, better.group.unscored) == (1.0, 1.0, 1)
    assert report.model_copy(update={"group_rewards": ()}) == before
    assert "| base | rank | 0.500 | " in to_markdown(report)
    [table] = [each for each in report_tables(report) if each.title == "Group rewards"]
    assert table.columns[2:4] == ("mean", "own mean")


def result_of(reward):
    return VerifyResult.unscored("why") if reward is None else VerifyResult(reward=reward)
