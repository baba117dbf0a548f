"""Rewards of the agent's answer: equal text, a pattern, or equal JSON."""

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from benchflow_contracts import Evidence, RewardError, RolloutNode, SandboxError, VerifyResult
from benchflow_contracts.scratch import scratch_directory
from pydantic import JsonValue

from benchflow_reward.collect import Collected, collect
from benchflow_reward.matcher import search
from benchflow_reward.strict_json import StrictJsonError, parse_strict_json, same_json

MAX_ANSWER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes of the answer, or why there are none."""

    source: str
    data: bytes | None
    reason: str = ""

    @property
    def text(self) -> str | None:
        """The bytes as UTF-8, or `None` when they are not text."""
        if self.data is None:
            return None
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError:
            return None

    def verdict(self, right: bool, why: str = "") -> VerifyResult:
        """Return 1 when `right`, else 0, with where the answer came from."""
        meta = {"answer": self.source}
        if not right and (reason := self.reason or why):
            meta["reason"] = reason
        return VerifyResult(reward=1.0 if right else 0.0, meta=meta)


async def read_answer(
    node: RolloutNode, evidence: Evidence, file: str | None, reward: str
) -> Answer:
    """Return the text of `file` in the agent's sandbox, or else the last message.

    A missing or refused file is an answer without data: the agent's doing, so a
    verdict. The last message is the last non-empty one of the path.

    Raises:
        EvidenceMissingError: There is no live world to read `file` from.
        RewardError: The sandbox failed.
    """
    if file is None:
        messages = [step.message for step in node.steps if step.message.strip()]
        if not messages:
            return Answer("message", None, "the agent said nothing")
        return Answer("message", messages[-1].encode("utf-8", "replace")[:MAX_ANSWER_BYTES])
    world = evidence.require_world(reward)
    with scratch_directory("answer") as scratch:
        try:
            [item] = await collect(
                world.sandbox,
                [file],
                scratch,
                max_bytes=MAX_ANSWER_BYTES,
                may_kill=world.may_end_processes,
            )
        except SandboxError as error:
            raise RewardError(f"{reward!r} cannot read {file!r}: {error}") from error
        return await asyncio.to_thread(_load, item)


def _load(item: Collected) -> Answer:
    if item.local is None:
        return Answer(item.path, None, item.reason or "the file does not exist")
    if not item.local.is_file():
        return Answer(item.path, None, "it is a directory")
    return Answer(item.path, item.local.read_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfAnswer:
    """A reward of the answer, in a file or in the last message."""

    file: str | None = None
    needs_processes: ClassVar[bool] = False

    @property
    def stops_processes(self) -> bool:
        """Whether the answer is a file, which is read while no process runs."""
        return self.file is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatch(_OfAnswer):
    """1 when the answer equals `expected`, else 0. Output space, terminal.

    The answer is `file` in the agent's sandbox, or else the agent's last message.
    """

    expected: str
    strip: bool = True
    """Whether blanks around both texts are ignored."""
    ignore_case: bool = False
    name: str = "exact"

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Compare. Raises `RewardError` when `file` cannot be read for our reasons."""
        answer = await read_answer(node, evidence, self.file, self.name)
        text = answer.text
        right = text is not None and self._normal(text) == self._normal(self.expected)
        return answer.verdict(right, "the text differs")

    def _normal(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.casefold() if self.ignore_case else text


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexMatch(_OfAnswer):
    r"""1 when `pattern` is found in the answer, else 0. Output space, terminal.

    The answer is `file` in the agent's sandbox, or else the agent's last message.
    `^` and `$` match at line ends; anchor with `\A` and `\Z` for the whole text.
    """

    pattern: str
    ignore_case: bool = False
    name: str = "regex"

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Search. Raises `RewardError` for a bad or endless pattern."""
        answer = await read_answer(node, evidence, self.file, self.name)
        text = answer.text
        found = [] if text is None else [text]
        right = any(await search(self.pattern, found, ignore_case=self.ignore_case))
        return answer.verdict(right, "the pattern is not in the text")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonMatch(_OfAnswer):
    """1 when the answer is JSON that equals `expected`, else 0. Output space.

    The answer is `file` in the agent's sandbox, or else the agent's last message; it
    is read by the strict parser. With `pointer` (RFC 6901) only the value there
    counts. With `subset`, objects may hold more keys than `expected`.
    """

    expected: JsonValue
    pointer: str = ""
    subset: bool = False
    name: str = "json"

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
