import errno
import json
import math
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from benchflow_adapters_harbor.grading.reward_files import (
    RewardFileEmptyError,
    RewardFileNotFoundError,
    VerifierOutputParseError,
    parse_rewards,
    return_of,
)
from benchflow_contracts import HostError
from benchflow_reward import reward_bytes
from benchflow_reward.errors import RewardFormatError, TwoRewardFilesError
from hypothesis import given
from hypothesis import strategies as st

# What both read alike: text, document.
ALIKE: list[tuple[str | None, str | None]] = [
    *((text, None) for text in ("1", " 0.5\n", "-2", "1e-1", "+1", "1_0", "\uff11", ".5", "", "x")),
    *((text, None) for text in ("nan", "-inf", "1e999", " ", "1 2", "0x1", "1,5", None)),
    *(("1", text) for text in ('{"reward": 1}', '{"a": 1, "b": -0.5}', '{"reward": true}', "{}")),
    *(("1", text) for text in ("", "[1]", "null", '"1"', "{", '{"a": "1"}', '{"a": null}', "NaN")),
    *(("1", text) for text in ('{"a": NaN}', '{"a": 1e309}', '{"a": {"b": 1}}', '{"a": [1]}', "3")),
    *((None, text) for text in ('{"reward": 0.25, "b": false}', '\ufeff{"a": 1}', '{"a": -0.0}')),
]


def write(directory: Path, text: str | None, document: str | None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in (("reward.txt", text), ("reward.json", document)):
        if content is not None:
            (directory / name).write_text(content, encoding="utf-8")
    return directory


def read(directory: Path) -> dict[str, float] | str:
    try:
        return parse_rewards(directory, "open")
    except RewardFormatError as error:
        return type(error).__name__


def test_rewards_and_errors_are_those_of_harbor_itself(harbor_python, tmp_path):
    folders = [write(tmp_path / str(i), *pair) for i, pair in enumerate(ALIKE)]
    script = Path(__file__).with_name("parse_with_harbor.py")
    env = {**os.environ, "HARBOR_TELEMETRY": "off"}
    done = subprocess.run(
        [harbor_python, script, *folders], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    assert [(pair, read(folder)) for pair, folder in zip(ALIKE, folders, strict=True)] == [
        (pair, found) for pair, found in zip(ALIKE, theirs, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "document", "error"),
    [
        (None, None, RewardFileNotFoundError),
        ("", None, RewardFileEmptyError),
        ("1", "", RewardFileEmptyError),
        ("1", '{"a": 1, "a": 0}', VerifierOutputParseError),
        ("1", '{"a": 1' + "0" * 64 + "}", VerifierOutputParseError),
        ("1", '{"' + "k" * 129 + '": 1}', VerifierOutputParseError),
        ("1", json.dumps({str(i): i for i in range(257)}), VerifierOutputParseError),
        ("1", '{"a": 1}' + " " * 65536, VerifierOutputParseError),
        ("0" * 65537, None, VerifierOutputParseError),
        ("-1e51", None, VerifierOutputParseError),
        ("1", '{"a": 1e51}', VerifierOutputParseError),
    ],
)
def test_each_invalid_reward_has_its_own_error_type(tmp_path, text, document, error):
    with pytest.raises(error) as caught:
        parse_rewards(write(tmp_path, text, document), "open")
    assert type(caught.value) is error
    assert caught.value.hint


@pytest.mark.parametrize("text", ["1", "", "words", "0" * 65537])
def test_two_reward_files_are_an_error_whatever_they_hold(tmp_path, text):
    with pytest.raises(TwoRewardFilesError, match=r"reward\.json and reward\.txt"):
        parse_rewards(write(tmp_path / "files", text, '{"reward": 1}'), "strict")
    (write(tmp_path / "kinds", None, '{"reward": 1}') / "reward.txt").mkdir()
    with pytest.raises(TwoRewardFilesError):
        parse_rewards(tmp_path / "kinds", "strict")


@pytest.mark.parametrize(("text", "document"), [("0.5", None), (None, '{"reward": 0.5}')])
def test_one_reward_file_is_read_alike_by_both_rules(tmp_path, text, document):
    directory = write(tmp_path, text, document)
    assert parse_rewards(directory, "strict") == {"reward": 0.5}
    assert parse_rewards(directory, "open") == {"reward": 0.5}


def test_a_link_or_a_pipe_is_not_a_reward_file(tmp_path):
    (tmp_path / "secret").write_text("1")
    for name in ("reward.json", "reward.txt"):
        (tmp_path / name).symlink_to(tmp_path / "secret")
        assert read(tmp_path) == "VerifierOutputParseError"
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        assert read(tmp_path) == "VerifierOutputParseError"
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ({"reward": 0.5, "other": 1}, 0.5),
        ({"passed": 0.25}, 0.25),
        ({"a": 1, "b": 0, "c": -0.25}, 0.25),
        ({"a": 1e308, "b": 1e308}, 1e308),
        ({}, None),
    ],
)
def test_one_number_stands_for_the_rewards(rewards, expected):
    assert return_of(rewards) == (None if expected is None else pytest.approx(expected))


NUMERIC_LOOKING = st.text(alphabet="01259.-+eE_ \n\tnaif\uff11\x00", max_size=70).map(str.encode)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)
DOCUMENTS = st.one_of(
    st.binary(max_size=200),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.text(), st.booleans() | st.floats()).map(lambda v: json.dumps(v).encode()),
)


@given(NUMERIC_LOOKING | st.binary(max_size=80), st.none() | DOCUMENTS)
def test_any_bytes_give_finite_numbers_or_one_of_the_errors(text, document):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "reward.txt").write_bytes(text)
        if document is not None:
            (directory / "reward.json").write_bytes(document)
        try:
            rewards = parse_rewards(directory, "open")
        except (RewardFileEmptyError, VerifierOutputParseError):
            return
    assert all(math.isfinite(value) for value in rewards.values())
    if document is None:
        assert rewards == {"reward": float(text.decode())}
    else:
        assert rewards == {key: float(value) for key, value in json.loads(document).items()}
    number = return_of(rewards)
    assert (number is None) == (not rewards)
    assert number is None or math.isfinite(number)


def test_a_disk_error_at_the_check_for_two_reward_files_is_a_host_error(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    write(tmp_path, "1", None)
    monkeypatch.setattr(reward_bytes.os, "stat", broken)
    with pytest.raises(HostError, match="Input/output"):
        parse_rewards(tmp_path, "strict")
