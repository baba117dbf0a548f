"""RegexMatch: the answer matches a pattern."""

from dataclasses import dataclass
from typing import ClassVar

from benchflow_contracts import Evidence, RolloutNode, VerifyResult

from benchflow_reward.matcher import search

from .answer import read_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexMatch:
    r"""1 when `pattern` is found in the answer, else 0. Output space, terminal.

    The answer is `file` in the agent's sandbox, or else the agent's last message.
    `^` and `$` match at line ends; anchor with `\A` and `\Z` for the whole text.
    """

    pattern: str
    file: str | None = None
    ignore_case: bool = False
    name: str = "regex"
    needs_processes: ClassVar[bool] = False

    @property
    def stops_processes(self) -> bool:
        """Whether the answer is a file, which is read while no process runs."""
        return self.file is not None

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Search. Raises `RewardError` for a bad or endless pattern."""
        answer = await read_answer(node, evidence, self.file, self.name)
        text = answer.text
        found = [] if text is None else [text]
        right = any(await search(self.pattern, found, ignore_case=self.ignore_case))
        return answer.verdict(right, "the pattern is not in the text")
