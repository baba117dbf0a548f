"""The facts of jobs as tables and views: running jobs, damaged files, parquet, older jobs."""

import json
import os
import shutil
from pathlib import Path

import pytest
from benchflow_analysis import TABLES, VIEWS, Facts, fact_files, query_jobs, view_set, write_parquet
from benchflow_analysis.fact_files import expose
from benchflow_contracts import StoreError

TWO = {"a": {"t1": [1.0, 0.0], "t2": [1.0, None]}, "b": {"t1": [1.0, 1.0], "t2": [0.0, 0.0]}}
THREE = {**TWO, "c": {"t1": [1.0, 1.0], "t2": [1.0, 1.0]}}


def rows(jobs, sql):
    result = query_jobs(jobs, sql)
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def test_every_table_and_view_can_be_read(write_facts):
    job = write_facts("j", TWO)
    for name in (*TABLES, *VIEWS):
        assert rows([job], f"SELECT * FROM {name}")


def test_trials_are_read_in_schedule_order_with_every_column(write_facts):
    with Facts([write_facts("j", TWO)]) as facts:
        trials = facts.trials()
    assert [trial.index for trial in trials] == list(range(8))
    assert (trials[3].reward, trials[3].scored, trials[3].fingerprint) == (None, False, "ab12")
    assert (trials[4].variant, trials[4].task, trials[4].tokens_in) == ("b", "t1", 100)
    assert (trials[4].value, trials[4].leaves, trials[4].rollout_id) == (1.0, 3, "r4")
    assert (trials[4].started_at, trials[4].finished_at, trials[4].seconds) == (5.0, 7.0, 2.0)


def test_an_unscored_trial_is_counted_and_in_no_mean(write_facts):
    first, second = rows([write_facts("j", TWO)], "FROM variant_summary")
    assert (first["trials"], first["scored"], first["unscored"]) == (4, 3, 1)
    assert first["mean_reward"] == pytest.approx((0.5 + 1.0) / 2)
    assert first["cost_usd"] == 2.0
    assert second["pass_rate"] == pytest.approx(0.5)
    (cell,) = rows(
        [write_facts("k", TWO)], "FROM task_variant_matrix WHERE variant='a' AND task='t2'"
    )
    assert (cell["trials"], cell["scored"], cell["passes"], cell["mean_reward"]) == (2, 1, 1, 1.0)


def test_two_variants_are_compared_by_wins_and_losses(write_facts):
    (row,) = rows([write_facts("j", TWO)], "FROM win_loss_tie")
    assert (row["baseline"], row["variant"]) == ("a", "b")
    assert (row["wins"], row["losses"], row["ties"]) == (1, 1, 0)
    assert row["delta"] == pytest.approx((0.5 - 1.0) / 2)
    (row,) = rows([write_facts("k", TWO, baseline="b")], "FROM win_loss_tie")
    assert (row["baseline"], row["variant"], row["wins"]) == ("b", "a", 1)


def test_more_variants_have_a_ranking_and_a_best_config(write_facts):
    job = write_facts("j", THREE)
    ranked = rows([job], "SELECT rank, variant FROM ranking")
    assert [(row["rank"], row["variant"]) for row in ranked] == [(1, "c"), (2, "a"), (3, "b")]
    (best,) = rows([job], "FROM best_config")
    assert json.loads(best["config"]) == {"agent": "c"}


def test_a_trend_has_each_repeat_and_its_change(write_facts):
    found = rows([write_facts("j", {"a": {"t1": [0.0, 1.0], "t2": [0.5, 0.5]}})], "FROM trend")
    assert [(row["repeat"], row["mean_reward"], row["change"]) for row in found] == [
        (0, 0.25, None),
        (1, 0.75, 0.5),
    ]


def test_progress_counts_slots_that_are_not_resolved(write_facts):
    (row,) = rows([write_facts("j", TWO, slots=12)], "FROM run_progress")
    assert (row["slots"], row["resolved"], row["remaining"]) == (12, 8, 4)
    assert (row["completed"], row["failed"], row["skipped_pruned"]) == (7, 1, 0)


def test_several_jobs_are_in_one_table_in_the_order_of_their_creation(write_facts):
    jobs = [
        write_facts("late", {"a": {"t": [1.0, 1.0]}}, created_at=20.0),
        write_facts("early", {"a": {"t": [0.0, 1.0]}}, created_at=10.0),
    ]
    assert [row["job"] for row in rows(jobs, "FROM all_runs")] == ["early", "late"]
    assert len(rows(jobs, "FROM all_trials")) == 4
    trend = rows(jobs, "FROM pass_rate_trend")
    assert [(row["job"], row["pass_rate"], row["change"]) for row in trend] == [
        ("early", 0.5, None),
        ("late", 1.0, 0.5),
    ]


@pytest.mark.parametrize(
    ("design", "variants", "view"),
    [
        ("paired", 1, "win_loss_tie"),
        ("paired", 2, "win_loss_tie"),
        ("paired", 3, "ranking"),
        (None, 2, "win_loss_tie"),
        ("unpaired", 2, "best_config"),
        ("sweep", 9, "best_config"),
        ("regression", 1, "trend"),
        ("none", 1, "trend"),
    ],
)
def test_the_design_chooses_the_view(design, variants, view):
    assert view_set(design, variants) == view
    assert view in VIEWS


def test_an_unfinished_last_line_is_left_out_and_counted(write_facts):
    job = write_facts("j", TWO)
    path = job / "facts" / "trials.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"slot": "j", "in')
    with Facts([job]) as facts:
        assert len(facts.trials()) == 8
        assert facts.torn_bytes == {str(path): 17}
    assert path.read_bytes() == whole + b'{"slot": "j", "in'
    path.write_bytes(b'{"job"')
    with Facts([job]) as facts:
        assert facts.trials() == []
        assert facts.torn_bytes == {str(path): 6}


def test_a_line_that_is_torn_after_the_open_is_left_out_too(write_facts):
    job = write_facts("j", TWO)
    path = job / "facts" / "trials.jsonl"
    with Facts([job]) as facts:
        with path.open("ab") as file:
            file.write(b'{"job": "j", "ind')
        assert len(facts.trials()) == 8
        assert facts.torn_bytes == {str(path): 17}


def test_a_damaged_line_in_the_middle_is_an_error(write_facts):
    job = write_facts("j", TWO)
    path = job / "facts" / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1][:20] + b"\n", *lines[2:]]))
    with Facts([job]) as facts, pytest.raises(StoreError, match="damaged facts"):
        facts.trials()


def test_a_file_that_does_not_exist_yet_has_no_rows(write_facts):
    job = write_facts("j", TWO)
    (job / "facts" / "events.jsonl").unlink()
    (job / "facts" / "metrics_long.jsonl").write_bytes(b"")
    assert rows([job], "FROM events") == []
    assert rows([job], "FROM metrics_long") == []
    assert len(rows([job], "FROM trials")) == 8


def test_a_path_with_characters_of_globs_and_sql_is_a_path(write_facts, tmp_path):
    job = write_facts("j", TWO)
    strange = tmp_path / "it's [a] *?"
    strange.mkdir()
    (job).rename(strange / "j")
    assert len(rows([strange / "j"], "FROM trials")) == 8


def test_parquet_gives_the_same_answers_until_the_facts_change(write_facts):
    job = write_facts("j", TWO)
    before = {name: rows([job], f"FROM {name}") for name in (*TABLES, *VIEWS)}
    written = write_parquet(job)
    assert [path.name for path in written] == [
        f"{name}.parquet" for name in TABLES if name != "run_manifest"
    ]
    assert {name: rows([job], f"FROM {name}") for name in before} == before
    # The parquet files are read, not the JSONL files.
    path = job / "facts" / "trials.jsonl"
    status, text = path.stat(), path.read_text()
    path.write_text(text.replace('"reward": 1.0', '"reward": 0.0'))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert rows([job], "FROM trials") == before["trials"]
    # A file of the same size with another time is read again.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert rows([job], "SELECT sum(reward) AS s FROM trials") == [{"s": 0.0}]


def test_the_same_facts_give_the_same_parquet_bytes(write_facts):
    job = write_facts("j", TWO)
    first = [path.read_bytes() for path in write_parquet(job)]
    assert [path.read_bytes() for path in write_parquet(job)] == first
    assert not list((job / "facts").glob(".*"))


def test_parquet_of_a_running_job_is_not_read_again(write_facts):
    job = write_facts("j", TWO)
    path = job / "facts" / "trials.jsonl"
    path.write_bytes(path.read_bytes() + b'{"job": "j"')
    write_parquet(job)
    stamps = json.loads((job / "facts" / "parquet.json").read_text())
    assert "trials" not in stamps
    assert "events" in stamps


def test_a_job_without_facts_has_no_parquet(write_records):
    with pytest.raises(StoreError, match="does not have facts"):
        write_parquet(write_records("j", {"t": [1.0]}))


def test_a_job_of_records_alone_has_trials_metrics_and_variants(write_records):
    job = write_records("old", {"t1": [1.0, None], "t2": [0.0, 1.0]})
    with Facts([job]) as facts:
        trials = facts.trials()
    assert [(trial.slot, trial.reward) for trial in trials] == [
        ("t1#0", 1.0),
        ("t2#0", 0.0),
        ("t1#1", None),
        ("t2#1", 1.0),
    ]
    assert {trial.variant for trial in trials} == {"oracle"}
    assert (trials[2].error_boundary, trials[2].error_type) == ("sandbox", "CapacityError")
    assert (trials[0].seconds, trials[0].started_at, trials[0].finished_at) == (4.0, 96.0, 100.0)
    assert rows([job], "SELECT value FROM metrics_long WHERE name = 'reward'")
    (snapshot,) = rows([job], "FROM variant_snapshots")
    assert json.loads(snapshot["config"])["agent"] == "oracle"
    assert not (job / "facts").exists()


def test_only_the_newest_record_of_a_slot_is_a_trial(write_records):
    job = write_records("old", {"t1": [None]})
    record = json.loads((job / "t1__0" / "result.json").read_text())
    later = {**record, "rollout_id": "t1__x", "status": "completed", "reward": 1.0, "error": None}
    (job / "t1__x").mkdir()
    (job / "t1__x" / "result.json").write_text(json.dumps({**later, "finished_at": 1.0}))
    with Facts([job]) as facts:
        (trial,) = facts.trials()
    assert (trial.reward, trial.attempt, trial.rollout_id) == (1.0, 2, "t1__x")


def test_a_tampered_rollout_counts_as_zero(write_records):
    job = write_records("old", {"t1": [None]}, tampered=1, claimed=1.0, status="completed")
    with Facts([job]) as facts:
        (trial,) = facts.trials()
    assert (trial.reward, trial.scored, trial.error_type) == (0.0, True, None)
    assert trial.tampered == 1


def test_a_cancelled_rollout_does_not_resolve_its_slot(write_records):
    job = write_records("old", {"t1": [None], "t2": [None]}, status="cancelled")
    with Facts([job]) as facts:
        assert facts.trials() == []
    (row,) = rows([job], "FROM run_progress")
    assert (row["slots"], row["resolved"], row["remaining"]) == (2, 0, 2)


def test_errors_with_other_numbers_have_one_fingerprint(write_records):
    job = write_records("old", {"t1": [None], "t2": [None]})
    path = job / "t2__0" / "result.json"
    path.write_text(path.read_text().replace("out of 12 GB", "out of 977 GB"))
    with Facts([job]) as facts:
        assert len({trial.fingerprint for trial in facts.trials()}) == 1


def test_a_directory_that_is_not_a_job_is_refused(tmp_path):
    with pytest.raises(StoreError, match="not a job directory"):
        Facts([tmp_path])


def test_two_jobs_with_one_name_are_refused(write_facts, tmp_path):
    job = write_facts("j", TWO)
    with pytest.raises(StoreError, match="two jobs have one name"):
        Facts([job, tmp_path / "other" / "j"])


def test_a_damaged_plan_is_an_error(write_records):
    job = write_records("old", {"t1": [1.0]})
    (job / "job.json").write_text("{")
    with pytest.raises(StoreError, match="damaged plan"):
        Facts([job])


def test_nothing_is_left_in_the_temporary_directory(write_facts, tmp_path, monkeypatch):
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    job = write_facts("j", TWO)
    with Facts([job]) as facts:
        facts.trials()
        facts.refresh()
    write_parquet(job)
    with pytest.raises(StoreError):
        Facts([tmp_path / "nothing"])
    assert list(place.iterdir()) == []


def test_a_copy_of_a_job_has_the_name_of_its_directory(write_facts, tmp_path):
    job = write_facts("j", TWO)
    copy = shutil.copytree(job, job.with_name("copy"))
    write_parquet(copy)
    found = rows([job, copy], "SELECT DISTINCT job FROM all_trials ORDER BY job")
    assert [row["job"] for row in found] == ["copy", "j"]
    copy.rename(job.with_name("renamed"))
    (row,) = rows([job.with_name("renamed")], "SELECT DISTINCT job FROM trials")
    assert row["job"] == "renamed"


def test_the_working_directory_can_be_a_job(write_facts, monkeypatch):
    monkeypatch.chdir(write_facts("j", TWO))
    assert rows([Path()], "SELECT DISTINCT job FROM trials") == [{"job": "j"}]


def test_a_reward_that_is_not_finite_is_unscored_and_has_a_cause(write_facts):
    job = write_facts("j", {"a": {"t1": [1.0, float("nan")], "t2": [float("inf"), None]}})
    for _ in range(2):
        with Facts([job]) as facts:
            trials = facts.trials()
        assert [trial.reward for trial in trials] == [1.0, None, None, None]
        assert [trial.scored for trial in trials] == [True, False, False, False]
        assert [trial.error_type for trial in trials[1:]] == [
            "NonFiniteReward",
            "NonFiniteReward",
            "CapacityError",
        ]
        (row,) = rows([job], "FROM variant_summary")
        assert (row["scored"], row["unscored"], row["mean_reward"]) == (1, 3, 1.0)
        write_parquet(job)


def test_a_slot_without_a_record_is_an_unscored_trial(write_facts):
    job = write_facts("j", {"a": {"t1": [None, 1.0]}})
    path = job / "facts" / "trials.jsonl"
    text = path.read_text().replace('"leaves": 3', '"leaves": null', 1)
    path.write_text(text.replace('"tampered": 0', '"tampered": null', 1))
    with Facts([job]) as facts:
        first, second = facts.trials()
    assert (first.reward, first.leaves, first.tampered) == (None, 0, 0)
    assert (second.leaves, second.tampered) == (3, 0)


@pytest.mark.parametrize("name", ["trials.jsonl", "events.jsonl", "run_manifest.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_facts_are_read_from_regular_files_alone(write_facts, tmp_path, name, kind):
    job = write_facts("j", TWO)
    path = job / "facts" / name
    text = path.read_bytes()
    path.unlink()
    if kind == "link":
        (tmp_path / "secret").write_bytes(text)
        path.symlink_to(tmp_path / "secret")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(StoreError, match="not a regular file"):
        Facts([job])
    with pytest.raises(StoreError, match="not a regular file"):
        write_parquet(job)


def test_parquet_is_neither_read_nor_written_through_a_link(write_facts, tmp_path):
    job = write_facts("j", TWO)
    write_parquet(job)
    facts, secret = job / "facts", tmp_path / "secret"
    (facts / "trials.parquet").rename(secret)
    (facts / "trials.parquet").symlink_to(secret)
    (facts / ".trials.parquet").symlink_to(secret)
    before = secret.read_bytes()
    with Facts([job]) as opened:
        assert secret.resolve() not in opened.allowed_files
        assert len(opened.trials()) == 8
    write_parquet(job)
    assert secret.read_bytes() == before
    assert not (facts / "trials.parquet").is_symlink()


def test_parquet_with_other_columns_is_not_read(write_facts):
    job = write_facts("j", TWO)
    write_parquet(job)
    stamps = json.loads((job / "facts" / "parquet.json").read_text())
    stamps["trials"][2] += 1
    (job / "facts" / "parquet.json").write_text(json.dumps(stamps))
    (job / "facts" / "trials.parquet").write_bytes(b"")
    assert len(rows([job], "FROM trials")) == 8


def test_a_slot_with_two_trials_is_damage(write_facts):
    job = write_facts("j", TWO)
    path = job / "facts" / "trials.jsonl"
    path.write_text(path.read_text() * 2)
    with Facts([job]) as facts, pytest.raises(StoreError, match=r"two trials of the slot 'a/t1#0'"):
        facts.trials()


def test_a_trial_without_its_place_is_damage(write_facts):
    job = write_facts("j", TWO)
    path = job / "facts" / "trials.jsonl"
    path.write_text(path.read_text().replace('"task": "t1"', '"task": null', 1))
    with Facts([job]) as facts, pytest.raises(StoreError, match="lacks its place"):
        facts.trials()


def test_damage_is_reported_with_the_name_of_the_file(write_facts):
    job = write_facts("j", TWO)
    path = job / "facts" / "trials.jsonl"
    path.write_text(path.read_text().replace('"reward": 1.0', '"reward": "high"', 1))
    with Facts([job]) as facts, pytest.raises(StoreError) as caught:
        facts.trials()
    assert str(path) in str(caught.value)
    assert "bench store rebuild" in str(caught.value.hint)
    with pytest.raises(StoreError, match="damaged facts"):
        rows([job], "SELECT reward FROM trials")
    (job / "facts" / "run_manifest.json").write_text("[1,")
    with pytest.raises(StoreError, match="damaged facts"):
        rows([job], "FROM all_runs")


def test_a_line_of_many_megabytes_is_read(write_facts):
    job = write_facts("j", TWO)
    event = {"index": 0, "slot": "s", "attempt": 1, "seq": 0, "kind": "x", "data": "a" * (17 << 20)}
    (job / "facts" / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert rows([job], "SELECT length(data) AS n FROM events") == [{"n": (17 << 20) + 2}]
    assert len(write_parquet(job)) == 4


def test_a_path_that_is_not_text_is_refused(write_facts):
    job = write_facts("j", TWO)
    strange = job.with_name(os.fsdecode(b"by\xfftes"))
    job.rename(strange)
    with pytest.raises(StoreError, match="not UTF-8"):
        Facts([strange])


def test_parquet_is_written_while_a_line_is_being_written(write_facts, monkeypatch):
    job = write_facts("j", TWO)
    path = job / "facts" / "trials.jsonl"
    appended = []

    def write_on(source, link, *, copies=False):
        torn = expose(source, link, copies=copies)
        if source == path and not appended:
            with path.open("ab") as file:
                appended.append(file.write(b'{"index": 9, "sl'))
        return torn

    monkeypatch.setattr("benchflow_analysis.fact_files.expose", write_on)
    write_parquet(job)
    assert appended
    assert "trials" not in json.loads((job / "facts" / "parquet.json").read_text())
    assert len(rows([job], "FROM trials")) == 8


def test_a_copy_of_a_file_that_is_cut_meanwhile_ends_with_a_whole_line(tmp_path, monkeypatch):
    source = tmp_path / "trials.jsonl"
    source.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    ends = fact_files._end_of_lines

    def cut_later(file, size):
        whole = ends(file, size)
        if source.stat().st_size == 27:
            os.truncate(source, 12)
        return whole

    monkeypatch.setattr("benchflow_analysis.fact_files._end_of_lines", cut_later)
    expose(source, tmp_path / "copy", copies=True)
    assert (tmp_path / "copy").read_bytes() == b'{"a": 1}\n'
