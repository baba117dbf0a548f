"""The laws of `diff_states`."""

from collections import Counter

from benchflow_contracts.environment import EnvState, TableState
from benchflow_kernel import EnvDiff, RowChange, TableDiff, diff_states
from hypothesis import given, settings
from hypothesis import strategies as st

VALUES = st.one_of(st.none(), st.integers(0, 3), st.text("ab", max_size=2))
NAMES = st.sampled_from(["one", "two", "three"])


@st.composite
def tables(draw: st.DrawFn) -> TableState:
    width = draw(st.integers(1, 3))
    columns = tuple("xyz"[:width])
    rows = draw(st.lists(st.tuples(*[VALUES] * width), max_size=5))
    key = draw(st.sampled_from([(), ("x",), ("x", "y")[:width]]))
    kept = None if draw(st.integers(0, 5)) == 0 else tuple(rows)
    digest = repr((columns, rows))
    return TableState(columns=columns, key=key, rows=kept, row_count=len(rows), digest=digest)


STATES = st.builds(
    EnvState,
    databases=st.dictionaries(NAMES, st.dictionaries(NAMES, tables(), max_size=3), max_size=2),
    files=st.dictionaries(NAMES, st.sampled_from(["d1", "d2"]), max_size=3),
)
PAIRS = st.tuples(STATES, STATES)


def swapped(diff: EnvDiff) -> EnvDiff:
    def table(each: TableDiff) -> TableDiff:
        changed = tuple(RowChange(before=c.after, after=c.before) for c in each.changed)
        rows = {"rows_before": each.rows_after, "rows_after": each.rows_before}
        update = {"added": each.removed, "removed": each.added, "changed": changed, **rows}
        return each.model_copy(update=update)

    files = {"added": diff.files.removed, "removed": diff.files.added}
    return EnvDiff(
        databases={
            name: {at: table(each) for at, each in held.items()}
            for name, held in diff.databases.items()
        },
        files=diff.files.model_copy(update=files),
    )


def canonical(diff: EnvDiff) -> object:
    """Rows as multisets: their order follows the side that has them."""

    def bag(rows: tuple) -> Counter[str]:
        return Counter(map(repr, rows))

    tables = {
        (name, at): (bag(t.added), bag(t.removed), bag(t.changed), t.opaque, t.columns)
        for name, held in diff.databases.items()
        for at, t in held.items()
    }
    return set(diff.databases), tables, diff.files


def applied(before: TableState | None, diff: TableDiff) -> Counter[str]:
    rows = Counter(map(repr, () if before is None else before.rows or ()))
    rows -= Counter(map(repr, (*diff.removed, *(c.before for c in diff.changed))))
    return rows + Counter(map(repr, (*diff.added, *(c.after for c in diff.changed))))


@given(PAIRS)
def test_a_diff_is_empty_exactly_when_the_states_are_equal(pair: tuple[EnvState, EnvState]):
    a, b = pair
    assert diff_states(a, a).empty
    assert diff_states(a, b).empty == (a == b)


@settings(max_examples=300)
@given(PAIRS)
def test_swapping_the_states_swaps_the_diff(pair: tuple[EnvState, EnvState]):
    a, b = pair
    assert canonical(swapped(diff_states(a, b))) == canonical(diff_states(b, a))


@settings(max_examples=300)
@given(PAIRS)
def test_applying_a_diff_to_the_first_state_gives_the_second(pair: tuple[EnvState, EnvState]):
    a, b = pair
    diff = diff_states(a, b)
    assert {*a.files, *diff.files.added} - {*diff.files.removed} == {*b.files}
    names = {name: set(held) for name, held in a.databases.items()}
    for name in {*a.databases, *b.databases}:
        old, new = a.databases.get(name, {}), b.databases.get(name, {})
        changes = diff.databases.get(name, {})
        assert set(changes) <= {*names.get(name, ()), *new}
        for at in {*old, *new}:
            change = changes.get(at, TableDiff())
            if not change.opaque and (at not in new or new[at].rows is not None):
                expected = Counter(map(repr, new[at].rows or ())) if at in new else Counter()
                assert applied(old.get(at), change) == expected


@given(PAIRS)
def test_a_diff_survives_json(pair: tuple[EnvState, EnvState]):
    diff = diff_states(*pair)
    assert EnvDiff.model_validate_json(diff.model_dump_json()) == diff


def table(*rows: tuple, key: tuple[str, ...] = ("id",)) -> TableState:
    columns = ("id", "title")
    return TableState(
        columns=columns, key=key, rows=rows, row_count=len(rows), digest=repr((rows, key))
    )


def test_a_row_that_keeps_its_key_is_changed_and_without_a_key_replaced():
    old, new = ((1, "a"), (2, "b")), ((2, "c"), (3, "d"))
    a, b = (EnvState(databases={"db": {"t": table(*rows)}}) for rows in (old, new))
    found = diff_states(a, b).databases["db"]["t"]
    assert (found.added, found.removed) == (((3, "d"),), ((1, "a"),))
    assert found.changed == (RowChange(before=(2, "b"), after=(2, "c")),)
    a, b = (EnvState(databases={"db": {"t": table(*rows, key=())}}) for rows in (old, new))
    found = diff_states(a, b).databases["db"]["t"]
    assert (found.added, found.removed, found.changed) == (new, old, ())


def test_equal_rows_are_counted_and_a_key_that_repeats_is_no_key():
    a, b = (EnvState(databases={"db": {"t": table(*[(None, "x")] * count)}}) for count in (1, 3))
    assert diff_states(a, b).databases["db"]["t"].added == ((None, "x"), (None, "x"))


def test_a_table_without_rows_is_opaque_and_keeps_its_counts():
    small = table((1, "a"))
    big = TableState(columns=small.columns, key=("id",), row_count=9, digest="other")
    a, b = (EnvState(databases={"db": {"t": each}}) for each in (small, big))
    found = diff_states(a, b).databases["db"]["t"]
    assert (found.opaque, found.rows_before, found.rows_after) == (True, 1, 9)
    assert (found.added, found.removed) == ((), ())
