"""Secrets are found as programs print them, and what is left is still what it was."""

import base64
import itertools
import json
from typing import Any
from urllib.parse import quote

import pytest
from benchflow_contracts.redaction import MASK, redacting, redactor
from benchflow_engine.secret_redactor import SecretRedactor
from hypothesis import given
from hypothesis import strategies as st

SECRET = 's3cret/"äöü"\\key+9'
SECRETS = st.text(st.characters(codec="utf-8"), min_size=8, max_size=40).filter(
    lambda text: len(text.strip()) >= 8 and len(text.splitlines()) == 1
)


def encodings(secret: str) -> list[str]:
    raw = secret.encode()
    return [
        secret,
        raw.hex(),
        raw.hex().upper(),
        quote(secret, safe=""),
        quote(secret),
        json.dumps(secret),
        json.dumps(json.dumps({"key": secret})),
        json.dumps(secret, ensure_ascii=False),
    ]


@given(SECRETS, st.sampled_from(["", "a", "key=", "日本 "]))
def test_a_value_is_found_in_every_encoding_wherever_it_begins(secret: str, before: str) -> None:
    known = SecretRedactor([secret.strip()])
    for form in encodings(secret.strip()):
        assert MASK in known.text(f"{before}{form}{before}")
    whole = base64.b64encode(f"{before}{secret.strip()}{before}".encode())
    assert MASK.encode() in known.data(whole)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_no_part_of_a_value_is_left_of_its_base64(shift: int) -> None:
    found = SecretRedactor([SECRET]).data(base64.b64encode(b"x" * shift + SECRET.encode()))
    left = found.replace(MASK.encode(), b"")
    assert len(left) <= 6


def test_wrapped_base64_and_hex_are_found() -> None:
    long = "token-" + "0123456789abcdef" * 8
    known = SecretRedactor([long])
    wrapped = base64.encodebytes(b"the key is " + long.encode())
    assert wrapped.count(b"\n") > 1
    assert known.data(wrapped).count(MASK.encode()) == 1
    dumped = "\n".join(long.encode().hex()[at : at + 60] for at in range(0, 2 * len(long), 60))
    assert known.text(dumped) == MASK
    assert known.text(json.dumps(dumped)) == f'"{MASK}"'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just(f"a {SECRET} b"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(JSON, st.booleans())
def test_json_stays_json_of_the_same_shape(value: Any, ascii_only: bool) -> None:
    line = json.dumps(value, ensure_ascii=ascii_only).encode()
    known = SecretRedactor([SECRET])
    clean = known.json(line)
    assert json.loads(clean) == known.value(value)
    assert known.json(clean) == clean
    assert SECRET not in str(json.loads(clean))


def test_a_value_that_begins_inside_of_an_escape_breaks_no_json() -> None:
    known = SecretRedactor(["nebula-7"])
    line = json.dumps({"said": "go\nebula-7", "kept": 1}).encode()
    assert json.loads(known.json(line)) == {"said": "go\nebula-7", "kept": 1}


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_a_stream_is_redacted_in_whatever_pieces_it_comes(sizes: list[int]) -> None:
    data = f"one {SECRET}\ntwo {SECRET} and {SECRET}\nthree".encode()
    lines = SecretRedactor([SECRET]).lines()
    out, at = b"", 0
    for size in [*sizes, len(data)]:
        out += lines.feed(data[at : at + size])
        at += size
    out += lines.finish()
    assert out == f"one {MASK}\ntwo {MASK} and {MASK}\nthree".encode()


def test_a_line_without_an_end_is_not_held_for_ever() -> None:
    lines = SecretRedactor().lines(longest=10)
    assert lines.feed(b"x" * 8) == b""
    assert len(lines.feed(b"x" * 100)) >= 100


@pytest.mark.parametrize("where", range(1, 24))
def test_a_secret_in_two_pieces_of_a_long_stream_is_found(where: int) -> None:
    lines = SecretRedactor([SECRET]).lines(longest=400)
    encoded = base64.encodebytes(f"{SECRET}{'.' * 60}{SECRET}".encode())
    data = b"x" * 777 + SECRET.encode() + b"y" * 990 + b"\nkey: " + encoded + b"end\n"
    cuts = (0, 777 + where, data.index(b"key") + 5 * where, len(data))
    out = b"".join(lines.feed(data[a:b]) for a, b in itertools.pairwise(cuts)) + lines.finish()
    assert out == SecretRedactor([SECRET]).data(data)
    assert out.count(MASK.encode()) == 3
    assert SECRET.encode() not in out


def test_every_line_of_a_key_file_is_a_secret() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEFAASCBKcwggSj\n-----END KEY-----"
    found = SecretRedactor([pem]).text("line 2: 9w0BAQEFAASCBKcwggSj")
    assert found == f"line 2: {MASK}"


def test_short_values_are_left_alone() -> None:
    known = SecretRedactor(["1", "true", "abcde"])
    assert not known
    assert known.text("1 true abcde") == "1 true abcde"


def test_a_redactor_is_in_force_where_it_was_put_and_nowhere_else() -> None:
    made = SecretRedactor([SECRET])
    with redacting(made):
        assert redactor() is made
    assert not redactor()
    assert redactor().data(SECRET.encode()) == SECRET.encode()
    assert redactor().lines().feed(b"piece") == b"piece"
