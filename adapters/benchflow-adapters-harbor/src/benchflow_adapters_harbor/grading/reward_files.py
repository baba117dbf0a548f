"""The parser of the reward files that Harbor's tests (0.24) leave in `/logs/verifier`."""

import math
from collections.abc import Mapping
from pathlib import Path

from benchflow_contracts import RewardFiles
from benchflow_contracts.verdict import MAX_REWARD
from benchflow_reward.errors import RewardFormatError, TwoRewardFilesError
from benchflow_reward.reward_bytes import entry_exists, open_directory, read_capped
from benchflow_reward.strict_json import StrictJsonError, parse_strict_json

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16
MAX_KEYS = 256
MAX_KEY_CHARS = 128

_ONE_FILE = (
    "let test.sh write one reward file, or use --reward-files open, which reads reward.json "
    "and ignores reward.txt"
)
_HINT = "test.sh writes reward.json, an object of finite numbers, or reward.txt, one number"


class RewardFileNotFoundError(RewardFormatError):
    """The tests did not write a reward file."""


class RewardFileEmptyError(RewardFormatError):
    """The reward file is empty."""


class VerifierOutputParseError(RewardFormatError):
    """The reward file contains something else than finite numbers."""


def parse_rewards(directory: Path, reward_files: RewardFiles) -> dict[str, float]:
    """Read the rewards below `directory`, whose contents are not trusted.

    `reward.json` is an object of finite numbers with any names. `true` and `false` count as
    numbers; an empty object has no rewards. `reward.txt` is a finite number that `float()`
    reads, and becomes the key `reward`. Stricter than Harbor, a file has at most 64 KiB. The
    object has at most 256 different keys of 128 characters, with numbers of at most 64 digits. No
    number is above 1e50, because the variance of such rewards is not a finite number.

    With `reward_files = "open"`, `reward.txt` is not read if there is a `reward.json`.

    Raises:
        TwoRewardFilesError: Both files exist, and `reward_files` is `strict`.
        RewardFileNotFoundError: Neither file exists.
        RewardFileEmptyError: The file has no bytes.
        VerifierOutputParseError: Any other error. The function raises no other exception.
    """
    try:
        with open_directory(directory) as fd:
            if reward_files == "strict":
                _check_one(fd)
            document = read_capped(fd, "reward.json", MAX_BYTES, hint=_HINT)
            text = None
            if document is None:
                text = read_capped(fd, "reward.txt", MAX_BYTES, hint=_HINT)
    except TwoRewardFilesError:
        raise
    except RewardFormatError as error:
        raise VerifierOutputParseError(str(error), hint=error.hint) from error
    if document is not None:
        return _from_json(_check_not_empty(document, "reward.json"))
    if text is not None:
        return {"reward": _from_text(_check_not_empty(text, "reward.txt"))}
    raise RewardFileNotFoundError("neither reward.json nor reward.txt exists", hint=_HINT)


def _check_one(directory: int) -> None:
    if all(entry_exists(directory, name) for name in ("reward.json", "reward.txt")):
        raise TwoRewardFilesError("both reward.json and reward.txt exist", hint=_ONE_FILE)


def return_of(rewards: Mapping[str, float]) -> float | None:
    """Return the key `reward`, else the mean of all rewards, or None without rewards."""
    if "reward" in rewards or not rewards:
        return rewards.get("reward")
    return math.fsum(value / len(rewards) for value in rewards.values())


def _check_not_empty(data: bytes, name: str) -> bytes:
    if not data:
        raise RewardFileEmptyError(f"{name} is empty", hint=_HINT)
    return data


def _from_text(data: bytes) -> float:
    try:
        value = float(data.decode("utf-8"))
    except ValueError as error:
        raise _parse_error(f"reward.txt is not a number: {data[:64]!r}") from error
    return _finite("reward.txt", value)


def _from_json(data: bytes) -> dict[str, float]:
    try:
        document = parse_strict_json(data, max_depth=MAX_DEPTH)
    except StrictJsonError as error:
        raise _parse_error(f"reward.json: {error}") from error
    if not isinstance(document, dict):
        raise _parse_error("reward.json is not an object")
    if len(document) > MAX_KEYS or any(len(key) > MAX_KEY_CHARS for key in document):
        raise _parse_error(
            f"reward.json has over {MAX_KEYS} keys, or one of over {MAX_KEY_CHARS} characters"
        )
    return {key: _number(key, value) for key, value in document.items()}


def _number(key: str, value: object) -> float:
    if not isinstance(value, int | float):
        raise _parse_error(f"reward.json: {key!r} is not a number")
    return _finite(f"reward.json: {key!r}", float(value))  # at most 64 digits, so no overflow


def _finite(label: str, value: float) -> float:
    if not math.isfinite(value):
        raise _parse_error(f"{label} is not finite")
    if abs(value) > MAX_REWARD:
        raise _parse_error(f"{label} is above {MAX_REWARD:g}")
    return value + 0.0  # turns -0.0 into 0.0


def _parse_error(message: str) -> VerifierOutputParseError:
    return VerifierOutputParseError(message, hint=_HINT)
