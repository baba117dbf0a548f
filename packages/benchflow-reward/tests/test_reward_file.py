import json
import math
import os
import re
import tempfile
from pathlib import Path

import pytest
from benchflow_reward import ParsedReward, parse_reward
from benchflow_reward.errors import RewardFormatError
from hypothesis import given
from hypothesis import strategies as st

UNIT = (0.0, 1.0)
WIDE = (-10.0, 10.0)


def parse(txt: bytes | None = None, document: bytes | None = None, within=UNIT) -> ParsedReward:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if txt is not None:
            (directory / "reward.txt").write_bytes(txt)
        if document is not None:
            (directory / "reward.json").write_bytes(document)
        return parse_reward(directory, reward_range=within)


@pytest.mark.parametrize(
    ("txt", "value"),
    [
        (b"1", 1.0),
        (b"0", 0.0),
        (b"1.0\n", 1.0),
        (b"1.000", 1.0),
        (b" 0.5 \r\n", 0.5),
        (b".25", 0.25),
        (b"0.30000000000000004", 0.30000000000000004),
        (b"-0", 0.0),
        (b"0." + b"1" * 30, 0.1111111111111111),
    ],
)
def test_a_plain_decimal_is_the_reward(txt, value):
    parsed = parse(txt)
    assert parsed == ParsedReward(value, {}, {})
    assert math.copysign(1, parsed.reward) == 1


BAD_TXT = {
    "empty": b"",
    "blank": b" \n",
    "underscore": b"1_0",
    "underscore in fraction": b"0.1_1",
    "fullwidth digit": "\uff11".encode(),
    "arabic digit": "\u0661".encode(),
    "no-break space": "\u00a01".encode(),
    "vertical tab": b"\x0b1",
    "nul tail": b"1\x00",
    "plus sign": b"+1",
    "exponent": b"1e0",
    "big exponent": b"1e999",
    "hex": b"0x1",
    "hex float": b"0x1p0",
    "nan": b"nan",
    "inf": b"inf",
    "negative inf": b"-Infinity",
    "true": b"true",
    "word": b"passed",
    "two numbers": b"1 1",
    "two lines": b"1\n0",
    "leading zero": b"01",
    "trailing dot": b"1.",
    "lone dot": b".",
    "lone minus": b"-",
    "comma": b"0,5",
    "json": b'{"reward": 1}',
    "byte order mark": b"\xef\xbb\xbf1",
    "not utf-8": b"\xff1",
    "65 bytes": b"1" + b" " * 64,
    "5 kB": b"0." + b"0" * 5000,
    "10 MB": b"1" * 10_000_000,
    "above the range": b"1.01",
    "below the range": b"-0.01",
    "31 fraction digits": b"0." + b"1" * 31,
}

BAD_JSON = {
    "empty": b"",
    "bare number": b"1",
    "bare true": b"true",
    "array": b"[1]",
    "null": b"null",
    "no reward": b'{"score": 1}',
    "reward true": b'{"reward": true}',
    "reward string": b'{"reward": "1"}',
    "reward null": b'{"reward": null}',
    "reward array": b'{"reward": [1]}',
    "nan": b'{"reward": NaN}',
    "infinity": b'{"reward": Infinity}',
    "overflow": b'{"reward": 1e999}',
    "overflow in metadata": b'{"reward": 1, "metadata": {"x": 1e999}}',
    "duplicate key": b'{"reward": 0, "reward": 1}',
    "escaped duplicate key": b'{"reward": 0, "\\u0072eward": 1}',
    "nested duplicate key": b'{"reward": 1, "metadata": {"a": 1, "a": 2}}',
    "duplicate metadata": b'{"reward": 1, "metadata": {}, "metadata": {}}',
    "item true": b'{"reward": 1, "part": true}',
    "item string": b'{"reward": 1, "part": "x"}',
    "item object": b'{"reward": 1, "part": {"a": 1}}',
    "metadata list": b'{"reward": 1, "metadata": [1]}',
    "trailing comma": b'{"reward": 1,}',
    "trailing text": b'{"reward": 1} x',
    "two documents": b'{"reward": 1}{"reward": 1}',
    "single quotes": b"{'reward': 1}",
    "comment": b'{"reward": 1 /* x */}',
    "underscore": b'{"reward": 1_0}',
    "leading zero": b'{"reward": 01}',
    "plus": b'{"reward": +1}',
    "byte order mark": b'\xef\xbb\xbf{"reward": 1}',
    "utf-16": '{"reward": 1}'.encode("utf-16"),
    "lone surrogate": b'{"reward": 1, "metadata": {"a": "\\ud800"}}',
    "surrogate key": b'{"reward": 1, "\\ud800": 1}',
    "17 deep": b'{"reward": 1, "metadata": ' + b'{"a": ' * 16 + b"1" + b"}" * 17,
    "100k deep": b'{"reward": 1, "metadata": ' + b"[" * 60_000,
    "long number": b'{"reward": 0.' + b"1" * 70 + b"}",
    "huge integer": b'{"reward": ' + b"9" * 5000 + b"}",
    "over 64 KiB": b'{"reward": 1, "metadata": {"a": "' + b"x" * 65536 + b'"}}',
    "above the range": b'{"reward": 1.5}',
    "below the range": b'{"reward": -1}',
    "too many items": json.dumps({"reward": 1} | {f"k{i}": 1 for i in range(257)}).encode(),
    "long key": json.dumps({"reward": 1, "k" * 129: 1}).encode(),
    "nul": b'{"reward": 1}\x00',
}


@pytest.mark.parametrize("txt", BAD_TXT.values(), ids=BAD_TXT)
def test_a_reward_txt_outside_of_the_grammar_is_refused(txt):
    with pytest.raises(RewardFormatError):
        parse(txt)


@pytest.mark.parametrize("document", BAD_JSON.values(), ids=BAD_JSON)
def test_a_reward_json_outside_of_the_grammar_is_refused(document):
    with pytest.raises(RewardFormatError):
        parse(document=document)


def test_json_carries_items_and_metadata():
    document = {"reward": 0.5, "recall": 1, "loss": -3e-5, "metadata": {"n": [1, {"a": "é"}]}}
    parsed = parse(document=json.dumps(document).encode())
    assert parsed.reward == 0.5
    assert parsed.items == {"recall": 1.0, "loss": -3e-5}
    assert parsed.metadata == {"n": [1, {"a": "é"}]}


def test_sixteen_nested_objects_are_accepted():
    document = b'{"reward": 1, "metadata": ' + b'{"a": ' * 14 + b"{}" + b"}" * 15
    assert parse(document=document).reward == 1


def test_brackets_in_strings_do_not_count_as_depth():
    assert parse(document=json.dumps({"reward": 1, "metadata": {"a": "[" * 99}}).encode())


def test_the_declared_range_decides():
    assert parse(b"-2.5", within=WIDE).reward == -2.5
    assert parse(document=b'{"reward": 10}', within=WIDE).reward == 10


def test_no_file_and_both_files_are_refused():
    with pytest.raises(RewardFormatError, match="neither"):
        parse()
    with pytest.raises(RewardFormatError, match="both"):
        parse(b"1", b'{"reward": 1}')
    with pytest.raises(RewardFormatError):
        parse(b"1", b"")


@pytest.mark.parametrize("name", ["reward.txt", "reward.json"])
def test_only_a_regular_file_is_read(name, tmp_path):
    real = tmp_path / "real"
    real.write_text("1" if name == "reward.txt" else '{"reward": 1}')
    target = tmp_path / name

    target.symlink_to(real)
    with pytest.raises(RewardFormatError, match="link"):
        parse_reward(tmp_path, reward_range=UNIT)
    target.unlink()

    target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RewardFormatError, match="link"):
        parse_reward(tmp_path, reward_range=UNIT)
    target.unlink()

    os.mkfifo(target)
    with pytest.raises(RewardFormatError, match="regular"):
        parse_reward(tmp_path, reward_range=UNIT)
    target.unlink()

    target.mkdir()
    with pytest.raises(RewardFormatError, match="regular"):
        parse_reward(tmp_path, reward_range=UNIT)


def test_a_linked_or_missing_directory_is_refused(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    (real / "reward.txt").write_text("1")
    (tmp_path / "link").symlink_to(real)
    for directory in (tmp_path / "link", tmp_path / "missing", real / "reward.txt"):
        with pytest.raises(RewardFormatError):
            parse_reward(directory, reward_range=UNIT)


NUMERIC_LOOKING = st.text(alphabet="01259.-+eE_ \n\tnaif\uff11\x00", max_size=70)
ORACLE = re.compile(r"[ \t\r\n]*-?((0|[1-9][0-9]{0,8})(\.[0-9]{1,30})?|\.[0-9]{1,30})[ \t\r\n]*\Z")


@given(st.one_of(st.binary(max_size=80), NUMERIC_LOOKING.map(str.encode)))
def test_txt_is_accepted_exactly_when_the_grammar_says_so(data):
    text = data.decode("latin-1")
    fits = len(data) <= 64 and ORACLE.match(text) is not None and -10 <= float(text) <= 10
    try:
        parsed = parse(data, within=WIDE)
    except RewardFormatError:
        assert not fits
    else:
        assert fits
        assert parsed.reward == float(text)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(
    st.one_of(
        st.binary(max_size=200),
        JSON_VALUES.map(lambda value: json.dumps(value).encode()),
        st.dictionaries(st.sampled_from(["reward", "metadata", "a"]), JSON_VALUES).map(
            lambda value: json.dumps(value).encode()
        ),
    )
)
def test_json_gives_a_finite_reward_in_range_or_a_format_error(data):
    try:
        parsed = parse(document=data)
    except RewardFormatError:
        return
    raw = json.loads(data)["reward"]
    assert not isinstance(raw, bool)
    assert 0 <= parsed.reward == raw <= 1
    assert all(math.isfinite(value) for value in parsed.items.values())


def test_a_reward_json_of_escaped_quotes_is_refused_in_linear_time():
    # 32 thousand unclosed strings: a scan that restarts at each would take minutes.
    with pytest.raises(RewardFormatError):
        parse(document=b'{"' + b'\\"' * 32_000)
