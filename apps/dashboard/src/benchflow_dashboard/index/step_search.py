"""The search over steps: words and phrases in the full-text index, ranked, page by page."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final
from urllib.parse import urlencode

from benchflow_contracts import UsageError

from .database import IndexSession
from .run_query import LONGEST, PAGE, read_place, write_place

RANKED: Final = 20_000
"""The newest matches of a search, which are ranked."""
FEW_STEPS: Final = 100_000
"""Up to so many steps that pass the filters are listed before the words are looked up."""
_TERMS: Final = 16
_SNIPPET_WORDS: Final = 24
_FILTERS: Final = ("job", "task", "status")


@dataclass(frozen=True, slots=True)
class StepQuery:
    """What a search shows. An empty filter does not filter."""

    q: str = ""
    """Words, and phrases in double quotes. A step matches if it has all of them."""
    job: str = ""
    task: str = ""
    status: str = ""
    after: str = ""
    """The place after which the page begins."""
    before: str = ""
    """The place before which the page ends."""

    @classmethod
    def of(cls, params: Mapping[str, str]) -> "StepQuery":
        """Return the query of a URL. Unknown parameters are ignored.

        Raises:
            UsageError: A value is too long, a quote is not closed, or a place is not one.
        """
        names = {each.name for each in fields(cls)}
        query = cls(**{name: value for name, value in params.items() if name in names and value})
        for name, value in query.given.items():
            if len(value) > LONGEST:
                raise UsageError(
                    f"the {name} of the search has {len(value)} characters; the "
                    f"maximum is {LONGEST}"
                )
        for place in (query.after, query.before):
            if place:
                read_place(place)
        query.expression()
        return query

    @property
    def given(self) -> dict[str, str]:
        """The values that are set, by name."""
        values = {each.name: str(getattr(self, each.name)) for each in fields(self)}
        return {name: value for name, value in values.items() if value}

    @property
    def filters(self) -> dict[str, str]:
        """The filters that are set, by name."""
        return {name: value for name, value in self.given.items() if name in _FILTERS}

    def with_(self, **changes: str) -> "StepQuery":
        """Return the query with other values, from its first page."""
        return replace(self, **{"after": "", "before": "", **changes})

    def url_query(self) -> str:
        """Return the query string, without a question mark."""
        return urlencode(self.given)

    def expression(self) -> str:
        """Return the expression of the full-text index; empty without a word.

        Raises:
            UsageError: A quote is not closed, or the query has no or too many words.
        """
        if self.q.count('"') % 2:
            raise UsageError(
                f"a double quote is not closed: {self.q}", hint='write a phrase as "two words"'
            )
        terms: list[str] = []
        for place, part in enumerate(self.q.replace("\0", " ").split('"')):
            terms += [part.strip()] if place % 2 else part.split()
        # The index has letters and digits only: a term without any would match nothing.
        words = [term for term in terms if any(map(str.isalnum, term))]
        if self.q.strip() and not words:
            raise UsageError(f"no letter or digit to search for: {self.q}")
        if len(words) > _TERMS:
            raise UsageError(f"the search has {len(words)} words; the maximum is {_TERMS}")
        return " AND ".join(f'"{word}"' for word in words)


@dataclass(frozen=True, slots=True)
class SnippetPart:
    """A piece of a snippet."""

    text: str
    is_match: bool


@dataclass(frozen=True, slots=True)
class StepHit:
    """A step that a search found."""

    run: str
    job: str
    task: str
    status: str
    node: str
    seq: int
    title: str
    snippet: tuple[SnippetPart, ...]
    score: float
    """The rank of the match (BM25): the least is the best."""


@dataclass(frozen=True, slots=True)
class StepHits:
    """One page of a search."""

    hits: tuple[StepHit, ...]
    ranked: int
    """The matches that were ranked."""
    is_cut: bool
    """Whether older matches may exist beyond those that were ranked."""
    next: str | None
    """The `after` of the next page."""
    previous: str | None
    """The `before` of the page before."""


def search_steps(
    session: IndexSession, query: StepQuery, *, size: int = PAGE, few: int = FEW_STEPS
) -> StepHits:
    """Return one page of the steps that match, the best match first.

    Of very many matches, the newest 20,000 are ranked. Equal ranks are in falling order of age.
    `few` decides how a search with filters is done, and not what it finds.

    Raises:
        UsageError: The query is not valid.
    """
    words = query.expression()
    if not words:
        return StepHits(hits=(), ranked=0, is_cut=False, next=None, previous=None)
    backwards = bool(query.before)
    # Nobody can write this mark into a step, because nobody knows it before the search.
    mark = secrets.token_hex(8)
    matches = _filtered(session, query, words, few) if query.filters else _Matches(values=(words,))
    rows = [] if matches is None else _page(session, query, matches, words, mark, size + 1)
    has_more, rows = len(rows) > size, rows[:size]
    if backwards:
        rows.reverse()
    keys = [write_place(row[0], row[1]) for row in rows]
    has_next = bool(keys) if backwards else has_more
    has_previous = has_more if backwards else bool(query.after)
    ranked = rows[0][2] if rows else 0
    return StepHits(
        hits=tuple(_hit(row, mark) for row in rows),
        ranked=ranked,
        is_cut=ranked >= RANKED,
        next=keys[-1] if keys and has_next else None,
        previous=keys[0] if keys and has_previous else None,
    )


@dataclass(frozen=True, slots=True)
class _Matches:
    """The steps that match the words and pass the filters, as a part of a statement."""

    joins: str = ""
    where: str = ""
    values: tuple[object, ...] = ()


def _filtered(session: IndexSession, query: StepQuery, words: str, few: int) -> _Matches | None:
    """Return the matches of a query with filters; None if no step passes them.

    A frequent word matches most steps. To look each of them up among the few steps of a filter
    takes less time than to read its step and its run.
    """
    conditions = " AND ".join(f"runs.{name} = ?" for name in query.filters)
    values = tuple(query.filters.values())
    steps = f"SELECT steps.id FROM runs CROSS JOIN steps ON steps.run = runs.id WHERE {conditions}"
    range_sql = f"SELECT COUNT(*), MIN(id), MAX(id) FROM ({steps} LIMIT ?)"
    ((count, first, last),) = session.rows(range_sql, (*values, few + 1))
    if not count:
        return None
    if count > few:
        joins = "JOIN steps ON steps.id = step_words.rowid JOIN runs ON runs.id = steps.run"
        return _Matches(joins, f" AND {conditions}", (words, *values))
    # With the plus sign, SQLite makes the list once, and asks the words for nothing else.
    where = f" AND step_words.rowid BETWEEN ? AND ? AND +step_words.rowid IN ({steps})"
    return _Matches("", where, (words, first, last, *values))


def _page(
    session: IndexSession, query: StepQuery, matches: _Matches, words: str, mark: str, size: int
) -> list[tuple[Any, ...]]:
    values, scope = [*matches.values, RANKED], ""
    place, order = query.before or query.after, "score, id DESC"
    if place:
        score, step = read_place(place)
        sign, age = ("<", ">") if query.before else (">", "<")
        scope = f"WHERE score {sign} ? OR (score = ? AND id {age} ?)"
        values += [score, score, step]
    if query.before:
        order = "score DESC, id"
    # Only the snippets of this page are made; the index is asked again for each of them.
    sql = f"""
WITH found AS MATERIALIZED (
    SELECT step_words.rowid AS id, rank AS score FROM step_words {matches.joins}
    WHERE step_words MATCH ?{matches.where} ORDER BY step_words.rowid DESC LIMIT ?),
best AS MATERIALIZED (SELECT id, score FROM found {scope} ORDER BY {order} LIMIT ?)
SELECT score, best.id, (SELECT COUNT(*) FROM found), runs.name, runs.job, runs.task, runs.status,
    steps.node, steps.seq, steps.title, snippet(step_words, -1, ?, ?, '…', {_SNIPPET_WORDS})
FROM best CROSS JOIN step_words ON step_words.rowid = best.id AND step_words MATCH ?
JOIN steps ON steps.id = best.id JOIN runs ON runs.id = steps.run
ORDER BY {order.replace("id", "best.id")}"""
    return session.rows(sql, [*values, size, f"\x02{mark}", f"\x03{mark}", words])


def _hit(row: tuple[Any, ...], mark: str) -> StepHit:
    score, _, _, run, job, task, status, node, seq, title, snippet = row
    pieces = re.split(f"([\x02\x03]){mark}", snippet)
    parts = [SnippetPart(pieces[0], is_match=False)]
    parts += [
        SnippetPart(text, is_match=sign == "\x02")
        for sign, text in zip(pieces[1::2], pieces[2::2], strict=True)
    ]
    shown = tuple(part for part in parts if part.text)
    return StepHit(run, job, task, status, node, seq, title, shown, score)
