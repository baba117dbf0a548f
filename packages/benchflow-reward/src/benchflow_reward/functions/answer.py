"""The answer that a function judges: the last message, or a file of the sandbox."""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import Evidence, RewardError, RolloutNode, SandboxError, VerifyResult

from benchflow_reward.collect import Collected, collect

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
    with tempfile.TemporaryDirectory(prefix="bf-answer-") as name:
        try:
            [item] = await collect(
                world.sandbox,
                [file],
                Path(name),
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
