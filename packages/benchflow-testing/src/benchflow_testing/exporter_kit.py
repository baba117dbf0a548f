"""The conformance kit of an Exporter."""

import hashlib
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts.exporter import (
    Exported,
    Exporter,
    FinishedRollout,
    StreamsLeaves,
    begin_export,
)

from .check import Check, CheckResult, expect, expect_equal, promise, run_checks
from .fakes import fake_finished_rollout, fake_growing_rollout, fake_hostile_rollout


@dataclass(frozen=True, slots=True)
class ExporterSubject:
    """An exporter under test."""

    exporter: Exporter

    def write(self, *rollouts: FinishedRollout) -> tuple[Exported, dict[str, str]]:
        """Export into a new directory; return what was said, and each file's digest.

        Fails the running check when something else than regular files was made, or
        something beside the directory.
        """
        with tempfile.TemporaryDirectory(prefix="bf-export-") as name:
            home = Path(name) / "job"
            home.mkdir()
            said = self.exporter.export("job", iter(rollouts), home)
            beside = [each.name for each in Path(name).iterdir() if each != home]
            expect(not beside, f"it made {beside} beside its directory")
            return said, {str(p.relative_to(home)): _digest(p) for p in sorted(home.rglob("*"))}

    def stream(self, rollout: FinishedRollout) -> tuple[Exported, list[int], dict[str, str]]:
        """Export leaf by leaf; return what was said, the bytes after each leaf, and the digests."""
        with tempfile.TemporaryDirectory(prefix="bf-export-") as name:
            home = Path(name) / "job"
            home.mkdir()
            writer = begin_export(self.exporter, "job", home)
            sizes: list[int] = []
            for growing, leaf in fake_growing_rollout(rollout):
                writer.add(growing, leaf)
                sizes.append(sum(p.stat().st_size for p in home.rglob("*") if p.is_file()))
            said = writer.finish(iter([rollout]))
            return (
                said,
                sizes,
                {str(p.relative_to(home)): _digest(p) for p in sorted(home.rglob("*"))},
            )


def _digest(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        return "directory"
    expect(stat.S_ISREG(mode), f"{path.name!r} is neither a regular file nor a directory")
    return hashlib.sha256(path.read_bytes()).hexdigest()


ExporterCheck = Check[ExporterSubject]


@promise()
async def every_scored_leaf_is_written(subject: ExporterSubject) -> None:
    """The exporter writes at least the scored leaves, and counts the unscored leaves.

    A format of tokens may count a leaf without tokens as `untrainable` instead.
    """
    said, files = subject.write(fake_finished_rollout())
    written = said.trajectories + said.untrainable
    expect(2 <= written <= 3, f"{said.trajectories} of 2 scored leaves were written")
    expect_equal(said.unscored, 1, "the number of unscored leaves")
    expect(any(digest != "directory" for digest in files.values()), "no file was made")


@promise()
async def a_job_has_the_trajectories_of_its_rollouts(subject: ExporterSubject) -> None:
    """A job of two rollouts has the trajectories of both."""
    one, _ = subject.write(fake_finished_rollout("paint__1"))
    two, _ = subject.write(fake_finished_rollout("paint__1"), fake_finished_rollout("paint__2"))
    expect_equal(two.trajectories, 2 * one.trajectories, "the number of trajectories")
    expect_equal(two.unscored, 2 * one.unscored, "the number of unscored leaves")


@promise()
async def an_empty_job_is_written(subject: ExporterSubject) -> None:
    """A job without rollouts is not an error."""
    said, _ = subject.write()
    expect_equal(said, Exported(trajectories=0, unscored=0), "what was said")


@promise()
async def the_same_rollouts_give_the_same_bytes(subject: ExporterSubject) -> None:
    """The files do not depend on the time or the directory of the export."""
    _, first = subject.write(fake_finished_rollout())
    _, second = subject.write(fake_finished_rollout())
    expect_equal(second, first, "the second export")


@promise()
async def hostile_text_is_written(subject: ExporterSubject) -> None:
    """Terminal codes, lone surrogates, NaN, deep input and megabytes are not errors."""
    said, _ = subject.write(fake_hostile_rollout())
    leaves = said.trajectories + said.untrainable
    expect_equal((leaves, said.unscored), (1, 0), "the counts of leaves")


@promise()
async def exporting_does_not_change_the_tree(subject: ExporterSubject) -> None:
    """`export` does not change results, values, credit or children."""
    rollout = fake_finished_rollout()

    def picture() -> list[object]:
        return [
            (n.id, n.step, len(n.children), dict(n.results), n.value, n.credit, n.error)
            for n in rollout.tree.nodes
        ]

    before = picture()
    subject.write(rollout)
    expect_equal(picture(), before, "the tree after the export")


@promise()
async def leaves_one_by_one_give_the_same_bytes(subject: ExporterSubject) -> None:
    """`begin_export`, with each leaf while the tree still grows, gives the files of `export`."""
    said, files = subject.write(fake_finished_rollout())
    counts, sizes, streamed = subject.stream(fake_finished_rollout())
    expect_equal(streamed, files, "the files of the leaves")
    expect_equal(counts, said, "what was said")
    if isinstance(subject.exporter, StreamsLeaves):
        expect(sizes == sorted(set(sizes)), f"the bytes after each leaf are {sizes}")


_CHECKS: tuple[ExporterCheck, ...] = (
    every_scored_leaf_is_written,
    a_job_has_the_trajectories_of_its_rollouts,
    an_empty_job_is_written,
    the_same_rollouts_give_the_same_bytes,
    hostile_text_is_written,
    exporting_does_not_change_the_tree,
    leaves_one_by_one_give_the_same_bytes,
)


def exporter_checks() -> list[ExporterCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_exporter(
    exporter: Exporter,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against `exporter`.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    subject = ExporterSubject(exporter)
    return await run_checks(_CHECKS, subject, only=only, on_result=on_result)
