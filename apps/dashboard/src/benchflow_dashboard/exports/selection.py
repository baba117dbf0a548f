"""A selection of runs: those of a query, or those with some ids."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import parse_qsl, urlencode

from benchflow_contracts import FinishedRollout, StoreError, UsageError
from benchflow_store import read_finished_rollouts, read_record

from benchflow_dashboard.index import Index, RolloutEntry, RunQuery, read_page, read_totals

_BATCH: Final = 500
"""Rows of the index that are in memory at once."""
_MOST_IDS: Final = 500


@dataclass(frozen=True, slots=True)
class Selection:
    """The runs of an export. With `ids`, the query does not count."""

    query: RunQuery
    ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "Selection":
        """Return the selection of the parameters of a URL: those of `/runs`, and `id` repeated.

        Raises:
            UsageError: The query is wrong, or there are too many ids.
        """
        given = list(pairs)
        ids = tuple(dict.fromkeys(value for name, value in given if name == "id" and value))
        if len(ids) > _MOST_IDS:
            raise UsageError(
                f"{len(ids)} runs are selected by id; the maximum is {_MOST_IDS}",
                hint="select them by a filter or by a label",
            )
        return cls(RunQuery.of(dict(given)), ids)

    @classmethod
    def of_query(cls, text: str) -> "Selection":
        """Return the selection of a query string; see `of`."""
        return cls.of(parse_qsl(text))

    def url_query(self) -> str:
        """Return the query string, without a question mark."""
        if self.ids:
            return urlencode([("id", each) for each in self.ids])
        return replace(self.query, after="", before="").url_query()

    def count(self, index: Index) -> int:
        """Return the number of runs."""
        if self.ids:
            return len(list(self.entries(index)))
        with index.read() as session:
            return read_totals(session, self.query).n

    def entries(self, index: Index) -> Iterator[RolloutEntry]:
        """Yield the runs in the order of the list, a batch of the index at a time.

        Raises:
            UsageError: No run has one of the ids.
        """
        if self.ids:
            for each in self.ids:
                found = [entry for entry in index.find(each) if entry.id == each]
                if not found:
                    raise UsageError(f"no rollout has the id {each!r}")
                yield found[0]
            return
        query = replace(self.query, after="", before="")
        while True:
            with index.read() as session:
                page = read_page(session, query, read_totals(session, query).n, size=_BATCH)
            for run in page.runs:
                yield index.entry(run)
            if page.next is None:
                return
            query = replace(query, after=page.next)

    def finished(self, index: Index) -> Iterator[FinishedRollout]:
        """Yield the rollouts that have ended and have files here, one at a time.

        Raises:
            UsageError: No run has one of the ids.
            StoreError: A file of a rollout is missing or damaged.
        """
        for entry in self.entries(index):
            result = entry.directory / "result.json"
            if not entry.has_files or not result.is_file():
                continue
            record = read_record(result)
            if record.rollout_id != entry.directory.name:
                raise StoreError(
                    f"result.json names another rollout: {record.rollout_id[:100]!r}",
                    where=str(entry.directory),
                )
            yield from read_finished_rollouts(entry.directory.parent, [record])
