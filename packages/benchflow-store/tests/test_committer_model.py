"""The committer against a model: any order of attempts, writers and requests gives its rows."""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchflow_contracts import UsageError
from benchflow_store.database import (
    PROJECTED_FILES,
    JobReader,
    JobWriter,
    Projector,
    StaleWriterError,
    project,
    verify,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from job_records import PLAN, ended, planned

SLOTS = 4
index = st.integers(0, SLOTS - 1)


@dataclass
class Slot:
    """What the model knows of a slot."""

    status: str = "pending"
    counted: tuple[bool, int, int] | None = None
    ends: list[tuple[bool, int, int]] = field(default_factory=list)
    place: int | None = None
    """The place in `ends` of the attempt that counts."""


class Committer(RuleBasedStateMachine):
    """Two writers take turns. The one that began first is stale."""

    @initialize()
    def create(self) -> None:
        self.home = tempfile.TemporaryDirectory()
        self.database = Path(self.home.name, "record.db")
        self.loop = asyncio.new_event_loop()
        self.model = [Slot() for _ in range(SLOTS)]
        self.writers: list[JobWriter] = []
        self.projector = Projector(self.database.parent, self.database)
        self.begin()

    def run(self, call):
        return self.loop.run_until_complete(call)

    @rule()
    def begin(self) -> None:
        writer = JobWriter(self.database, "job")
        self.run(writer.begin(PLAN, planned(SLOTS), now=1.0))
        self.writers.append(writer)
        assert writer.epoch == len(self.writers)

    @rule(
        ends=st.lists(st.tuples(index, st.booleans(), st.integers(1, 3), st.booleans())),
        epoch=st.integers(1, 3),
    )
    def commit_together(self, ends: list[tuple[int, bool, int, bool]], epoch: int) -> None:
        """Commit attempts of this writer, or late ones that an earlier writer dispatched."""
        writer = self.writers[-1]
        epoch = min(epoch, writer.epoch)

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for at, scored, attempt, last in ends:
                    commit = ended(at, scored=scored, attempt=attempt, epoch=epoch, last=last)
                    group.create_task(writer.commit(commit))

        self.run(all_of_them())
        for at, scored, attempt, last in ends:
            self.expect(at, (scored, attempt, epoch), last=last)

    @rule(at=index)
    def commit_again(self, at: int) -> None:
        """Repeat a completion: a backend may report an attempt twice."""
        for scored, attempt, epoch in self.model[at].ends[-1:]:
            commit = ended(at, scored=scored, attempt=attempt, epoch=epoch)
            assert self.run(self.writers[-1].commit(commit)).duplicate
            self.expect(at, (scored, attempt, epoch), last=False)

    def expect(self, at: int, rank: tuple[bool, int, int], *, last: bool) -> None:
        slot = self.model[at]
        slot.ends.append(rank)
        if slot.counted is None or (not slot.counted[0] and rank > slot.counted):
            slot.counted, slot.place = rank, len(slot.ends) - 1
            if rank[0]:
                slot.status = "completed"
            elif last and slot.status == "pending":
                slot.status = "failed"

    @precondition(lambda self: len(self.writers) > 1)
    @rule(at=index)
    def commit_by_a_stale_writer(self, at: int) -> None:
        try:
            self.run(self.writers[-2].commit(ended(at)))
        except StaleWriterError:
            return
        raise AssertionError("a stale writer was not refused")

    @rule(at=index)
    def prune(self, at: int) -> None:
        self.run(self.writers[-1].resolve([at], "skipped_pruned"))
        if self.model[at].status == "pending":
            self.model[at].status = "skipped_pruned"

    @rule(at=index)
    def requeue(self, at: int) -> None:
        try:
            self.run(self.writers[-1].requeue([at]))
        except UsageError:
            assert self.model[at].status == "completed"
        else:
            assert self.model[at].status != "completed"
            self.model[at].status = "pending"

    @rule()
    def update_facts(self) -> None:
        assert self.projector.update() == self.cursor()

    @rule()
    def restart_projector(self) -> None:
        self.projector = Projector(self.database.parent, self.database)

    def cursor(self) -> int:
        resolved = [slot.status != "pending" for slot in self.model]
        return (*resolved, False).index(False)

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        with JobReader(self.database) as reader:
            assert reader.contradictions() == []
            assert reader.progress()[0] == self.cursor()
            attempts = reader.attempts()
            for slot, known in zip(reader.slots(), self.model, strict=True):
                mine = [each for each in attempts if each.index == slot.index]
                ranks = [(each.status == "scored", each.attempt, each.epoch) for each in mine]
                assert ranks == known.ends
                assert slot.status == known.status
                counted = [place for place, each in enumerate(mine) if each.counted]
                assert counted == ([] if known.place is None else [known.place])
                assert (slot.record is not None) == (known.place is not None)

    def teardown(self) -> None:
        if not hasattr(self, "writers"):
            return
        self.projector.update()
        directory = self.database.parent
        extended = {name: (directory / name).read_bytes() for name in PROJECTED_FILES}
        project(directory, self.database)
        assert {name: (directory / name).read_bytes() for name in PROJECTED_FILES} == extended
        # The rows name artifacts that were never stored.
        assert all("artifact" in problem for problem in verify(directory).problems)
        for writer in self.writers:
            self.run(writer.close())
        self.loop.close()
        self.home.cleanup()


TestCommitter = Committer.TestCase
TestCommitter.settings = settings(max_examples=25, stateful_step_count=20)
