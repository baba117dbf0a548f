"""Values of agents as JSON that every reader accepts."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from benchflow_contracts.plain_json import PlainJson

SMALL = PlainJson(depth=4, whole=2**53, chars=20)
TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT | st.integers(), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=20,
)


def depth_of(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case _:
            return 0


@given(VALUES)
def test_each_value_becomes_json_within_the_limits(value: object) -> None:
    plain = SMALL.value(value)
    text = json.dumps(plain, allow_nan=False, ensure_ascii=False)
    text.encode()
    assert json.loads(text) == plain
    assert depth_of(plain) <= SMALL.depth


@given(VALUES)
def test_plain_json_does_not_change_again_but_for_what_was_cut(value: object) -> None:
    wide = PlainJson()
    assert wide.value(wide.value(value)) == wide.value(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (True, True),
        (2**53, "9007199254740992"),
        (-(2**53) + 1, -(2**53) + 1),
        (math.inf, "inf"),
        ("a\ud800b", "a\ufffdb"),
        ("x" * 22, "x" * 20 + "… (2 more characters)"),
        ({1: (1, b"x")}, {"1": [1, "b'x'"]}),
        ([[[[[1]]]]], [[[["… (nested deeper)"]]]]),
    ],
)
def test_values_that_a_reader_could_not_take_are_texts(value: object, plain: Any) -> None:
    assert SMALL.value(value) == plain


def test_an_integer_of_a_million_digits_takes_no_time() -> None:
    assert SMALL.value(1 << 4_000_000).startswith("0x1")
