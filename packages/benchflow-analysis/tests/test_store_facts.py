"""The facts that the store writes have the columns that the analysis reads."""

import asyncio
import json
from pathlib import Path

from benchflow_analysis import TABLES, Facts, analyse
from benchflow_analysis.fact_files import file_name
from job_records import write_pending


def test_the_facts_of_a_record_database_are_analysed(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    asyncio.run(write_pending(job / "record.db", 6, 2, 5))
    for table, columns in TABLES.items():
        first = (job / "facts" / file_name(table)).read_text().splitlines()[0]
        assert set(columns) - {"job"} <= set(json.loads(first)), table
    with Facts([job]) as facts:
        trials = facts.trials()
        assert all(facts.rows(f"FROM {table}") for table in TABLES)
    assert [(trial.index, trial.variant, trial.reward) for trial in trials] == [
        (0, "a", 1.0),
        (1, "b", 1.0),
        (2, "a", 1.0),
        (3, "b", 1.0),
        (4, "a", 1.0),
    ]
    assert trials[0].tokens_in == 100
    assert trials[0].seconds == 100.25
    report = analyse([job])
    assert [(each.name, each.scored) for each in report.variants] == [("a", 3), ("b", 2)]
    assert (report.jobs[0].slots, report.jobs[0].resolved) == (6, 5)
