"""JsonMatch: the answer is this JSON value, or holds it."""

from dataclasses import dataclass
from typing import ClassVar

from benchflow_contracts import Evidence, RolloutNode, VerifyResult
from pydantic import JsonValue

from benchflow_reward.strict_json import StrictJsonError, parse_strict_json, same_json

from .answer import read_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonMatch:
    """1 when the answer is JSON that equals `expected`, else 0. Output space.

    The answer is `file` in the agent's sandbox, or else the agent's last message; it
    is read by the strict parser. With `pointer` (RFC 6901) only the value there
    counts. With `subset`, objects may hold more keys than `expected`.
    """

    expected: JsonValue
    file: str | None = None
    pointer: str = ""
    subset: bool = False
    name: str = "json"
    needs_processes: ClassVar[bool] = False

    @property
    def stops_processes(self) -> bool:
        """Whether the answer is a file, which is read while no process runs."""
        return self.file is not None

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Compare. Raises `RewardError` when `file` cannot be read for our reasons."""
        answer = await read_answer(node, evidence, self.file, self.name)
        if answer.data is None:
            return answer.verdict(right=False)
        try:
            value = _at(parse_strict_json(answer.data, max_depth=64), self.pointer)
        except StrictJsonError as error:
            return answer.verdict(right=False, why=str(error))
        same = _covers if self.subset else same_json
        return answer.verdict(same(self.expected, value), "the value differs")


def _at(value: JsonValue, pointer: str) -> JsonValue:
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif (
            isinstance(value, list) and key.isdecimal() and key.isascii() and int(key) < len(value)
        ):
            value = value[int(key)]
        else:
            raise StrictJsonError(f"nothing at {pointer!r}")
    return value


def _covers(expected: JsonValue, value: JsonValue) -> bool:
    if isinstance(expected, dict) and isinstance(value, dict):
        return all(key in value and _covers(expected[key], value[key]) for key in expected)
    if isinstance(expected, list) and isinstance(value, list):
        return len(expected) == len(value) and all(map(_covers, expected, value))
    return same_json(expected, value)
