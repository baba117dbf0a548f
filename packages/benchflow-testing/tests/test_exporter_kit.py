"""The exporter's kit: the fake passes it, and it catches what breaks a promise."""

import asyncio
import itertools
import json

import pytest
from benchflow_contracts import Exported
from benchflow_testing import check_exporter
from benchflow_testing.fakes import FakeExporter


def failed(exporter) -> set[str]:
    results = asyncio.run(check_exporter(exporter))
    assert {result.status for result in results} <= {"passed", "failed"}
    return {result.name for result in results if result.status == "failed"}


def test_the_fake_keeps_every_promise():
    exporter = FakeExporter()
    assert failed(exporter) == set()
    assert set(exporter.jobs) == {"job"}


class ForgetsTheUnscored(FakeExporter):
    def export(self, job, rollouts, directory):
        said = super().export(job, rollouts, directory)
        return said.model_copy(update={"unscored": 0})


class WritesTheFirstOnly(FakeExporter):
    def export(self, job, rollouts, directory):
        return super().export(job, itertools.islice(rollouts, 1), directory)


class WritesItsDirectory(FakeExporter):
    def export(self, job, rollouts, directory):
        (directory / "where.txt").write_text(str(directory))
        return super().export(job, rollouts, directory)


class MakesALink(FakeExporter):
    def export(self, job, rollouts, directory):
        (directory / "link").symlink_to("/etc/passwd")
        return super().export(job, rollouts, directory)


class WritesBeside(FakeExporter):
    def export(self, job, rollouts, directory):
        (directory.parent / "other").touch()
        return super().export(job, rollouts, directory)


class TrustsTheText(FakeExporter):
    def export(self, job, rollouts, directory):
        kept = list(rollouts)
        for number, rollout in enumerate(kept):
            steps = [n.step.model_dump() for n in rollout.tree.nodes if n.step is not None]
            text = json.dumps(steps, ensure_ascii=False, allow_nan=False)
            (directory / f"{number}.json").write_text(text, encoding="utf-8")
        return super().export(job, kept, directory)


class ScoresTheUnscored(FakeExporter):
    def export(self, job, rollouts, directory):
        kept = list(rollouts)
        for rollout in kept:
            for leaf in rollout.tree.leaves:
                leaf.error = None
        return super().export(job, kept, directory)


class NeedsOne(FakeExporter):
    def export(self, job, rollouts, directory):
        kept = list(rollouts)
        assert kept[0] is not None
        return super().export(job, kept, directory)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (ForgetsTheUnscored, "every_scored_leaf_is_written"),
        (WritesTheFirstOnly, "a_job_has_the_trajectories_of_its_rollouts"),
        (WritesItsDirectory, "the_same_rollouts_give_the_same_bytes"),
        (MakesALink, "every_scored_leaf_is_written"),
        (WritesBeside, "every_scored_leaf_is_written"),
        (TrustsTheText, "hostile_text_is_written"),
        (ScoresTheUnscored, "exporting_does_not_change_the_tree"),
        (NeedsOne, "an_empty_job_is_written"),
    ],
)
def test_a_broken_exporter_is_caught(broken, promise):
    assert promise in failed(broken())


def test_an_export_counts_no_negative_trajectories():
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        Exported(trajectories=-1, unscored=0)
