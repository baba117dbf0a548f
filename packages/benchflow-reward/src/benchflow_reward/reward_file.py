"""The parser of the reward files that our verifier writes to `/logs/verifier`."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from benchflow_reward.errors import RewardFormatError, TwoRewardFilesError

from .reward_bytes import open_directory, read_capped
from .strict_json import StrictJsonError, parse_strict_json

MAX_TXT_BYTES = 64
MAX_JSON_BYTES = 64 * 1024
MAX_DEPTH = 16
MAX_ITEMS = 256
MAX_KEY_CHARS = 128

_DECIMAL = re.compile(
    rb"[ \t\r\n]*(-?(?:(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,30})?|\.[0-9]{1,30}))[ \t\r\n]*"
)
_HINT = "test.sh writes exactly one of reward.txt (one decimal) or reward.json ({'reward': number})"


@dataclass(frozen=True, slots=True)
class ParsedReward:
    """A verifier's verdict, in the declared range."""

    reward: float
    items: Mapping[str, float]
    metadata: Mapping[str, JsonValue]


def parse_reward(directory: Path, *, reward_range: tuple[float, float]) -> ParsedReward:
    r"""Read the verdict from `directory`, which has hostile contents.

    Exactly one of `reward.txt` and `reward.json` exists, as a regular file that
    is not a link. The accepted grammar:

    - `reward.txt`: at most 64 bytes of ASCII. Optional blanks around one decimal
      `-?(0|[1-9]\d{0,8})(\.\d{1,30})?` or `-?\.\d{1,30}`; `\d` is `[0-9]`. So no
      exponent, plus sign, underscore, leading zero, `nan` or `inf`.
    - `reward.json`: at most 64 KiB of strict JSON (see `parse_strict_json`), depth
      at most 16: an object with the number `reward`, optionally an object
      `metadata`, and any other keys (at most 256, of at most 128 characters) with
      numbers: the items. `true` and `false` are not numbers.

    The reward lies within `reward_range`, both ends included. Items are finite;
    the range does not bind them. `-0` is 0.

    Raises:
        RewardFormatError: Anything else. No other error leaves this function.
    """
    with open_directory(directory) as fd:
        txt = read_capped(fd, "reward.txt", MAX_TXT_BYTES, hint=_HINT)
        document = read_capped(fd, "reward.json", MAX_JSON_BYTES, hint=_HINT)
    if txt is not None and document is not None:
        raise TwoRewardFilesError("both reward.json and reward.txt exist")
    if document is not None:
        parsed = _from_json(document)
    elif txt is not None:
        parsed = ParsedReward(_from_txt(txt), {}, {})
    else:
        raise RewardFormatError("neither reward.txt nor reward.json exists", hint=_HINT)
    low, high = reward_range
    if not low <= parsed.reward <= high:
        raise RewardFormatError(
            f"the reward {parsed.reward!r} is outside of [{low}, {high}]",
            hint="declare [verifier] reward_range in task.toml",
        )
    return parsed


def _from_txt(data: bytes) -> float:
    match = _DECIMAL.fullmatch(data)
    if match is None:
        raise RewardFormatError(f"reward.txt is not a plain decimal: {data!r}", hint=_HINT)
    return float(match.group(1)) + 0.0  # turns -0.0 into 0.0


def _from_json(data: bytes) -> ParsedReward:
    try:
        document = parse_strict_json(data, max_depth=MAX_DEPTH)
    except StrictJsonError as error:
        raise RewardFormatError(f"reward.json: {error}", hint=_HINT) from error
    if not isinstance(document, dict):
        raise RewardFormatError("reward.json is not an object", hint=_HINT)
    if "reward" not in document:
        raise RewardFormatError("reward.json has no key 'reward'", hint=_HINT)
    metadata = document.pop("metadata", {})
    if not isinstance(metadata, dict):
        raise RewardFormatError("reward.json: 'metadata' is not an object", hint=_HINT)
    if len(document) > MAX_ITEMS:
        raise RewardFormatError(f"reward.json has more than {MAX_ITEMS} items", hint=_HINT)
    numbers = {key: _number(key, value) for key, value in document.items()}
    reward = numbers.pop("reward")
    return ParsedReward(reward, numbers, metadata)


def _number(key: str, value: object) -> float:
    if len(key) > MAX_KEY_CHARS:
        raise RewardFormatError(f"reward.json: the key {key[:40]!r}... is too long", hint=_HINT)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RewardFormatError(f"reward.json: {key!r} is not a number", hint=_HINT)
    number = float(value)  # at most 64 digits, so no OverflowError
    if not math.isfinite(number):
        raise RewardFormatError(f"reward.json: {key!r} is not finite", hint=_HINT)
    return number + 0.0
