"""ExactMatch: the answer is this text."""

from dataclasses import dataclass
from typing import ClassVar

from benchflow_contracts import Evidence, RolloutNode, VerifyResult

from .answer import read_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatch:
    """1 when the answer equals `expected`, else 0. Output space, terminal.

    The answer is `file` in the agent's sandbox, or else the agent's last message.
    """

    expected: str
    file: str | None = None
    strip: bool = True
    """Whether blanks around both texts are ignored."""
    ignore_case: bool = False
    name: str = "exact"
    needs_processes: ClassVar[bool] = False

    @property
    def stops_processes(self) -> bool:
        """Whether the answer is a file, which is read while no process runs."""
        return self.file is not None

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Compare. Raises `RewardError` when `file` cannot be read for our reasons."""
        answer = await read_answer(node, evidence, self.file, self.name)
        text = answer.text
        right = text is not None and self._normal(text) == self._normal(self.expected)
        return answer.verdict(right, "the text differs")

    def _normal(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.casefold() if self.ignore_case else text
