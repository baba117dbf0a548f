"""The experts of a call are cut by token, and what is not such an array is refused."""

import base64

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from benchflow_contracts import RoutedExperts


def experts(rows: int, start: int = 0) -> RoutedExperts:
    """Return an array with two layers and one expert; the numbers name their token."""
    data = bytes(value for row in range(rows) for value in (start + row, 100 + row))
    text = base64.b64encode(data).decode()
    return RoutedExperts(data=text, shape=(rows, 2, 1), start=start)


@given(st.integers(1, 12), st.integers(0, 5), st.integers(0, 20), st.integers(0, 20))
def test_the_rows_of_a_range_are_those_of_its_tokens(
    rows: int, start: int, begin: int, end: int
) -> None:
    found = experts(rows, start).rows(begin, end)
    is_inside = start <= begin < end <= start + rows + 1
    assert (found is not None) == is_inside
    if found is not None:
        numbers = [layers[0][0] for layers in found.tolist()]
        # No engine has a row for the last token: it is that of the token before.
        assert numbers == [min(token, start + rows - 1) for token in range(begin, end)]
        assert (found.start, len(found.tobytes())) == (begin, 2 * len(numbers))


def test_wide_numbers_are_read_in_their_type() -> None:
    data = (300).to_bytes(2, "little") + (7).to_bytes(2, "little")
    wide = RoutedExperts(data=base64.b64encode(data).decode(), shape=(1, 1, 2), dtype="uint16")
    assert wide.tolist() == [[[300, 7]]]


@pytest.mark.parametrize(
    "fields",
    [
        {"data": "AAA", "shape": (1, 1, 1)},
        {"data": "AAAA", "shape": (1, 1, 1)},
        {"data": "AAAA", "shape": (-3, -1, 1)},
        {"data": "AAAA", "shape": (3, 1, 1), "dtype": "float64"},
    ],
)
def test_an_array_of_another_size_or_type_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RoutedExperts.model_validate(fields)
