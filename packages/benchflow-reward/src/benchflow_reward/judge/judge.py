"""LLMJudge: a model grades the answer against written criteria."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import httpx
from benchflow_contracts import Evidence, RewardError, RolloutNode, UsageError, VerifyResult
from pydantic import JsonValue

from benchflow_reward.functions.answer import read_answer

from .client import ChatClient
from .prompt import messages, schema

MAX_RATIONALE_CHARS = 4000

_CONTROL_ANSWER = "lorem ipsum 0000 lorem ipsum 0000"


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMJudge:
    """The median of `votes` scores, mapped to [0, 1]. Output space, terminal.

    The judged text (the agent's last message, or `files` of its sandbox) is fenced by
    a random word and never has the system role. Before the votes the judge grades a
    meaningless control answer; one that gives more than the lowest score for that
    is not believed. Any failure, from a timeout to a score off the scale, leaves the
    node unscored. Text can still persuade a judge: use coarse criteria, and a
    script verifier wherever the result can be checked.
    """

    client: ChatClient
    criteria: str
    files: Sequence[str] = ()
    """Absolute paths in the agent's sandbox. Empty means the last message."""
    scale: Sequence[int] = (0, 1, 2, 3, 4)
    """Rising; the first means not met, the last met in full."""
    votes: int = 3
    name: str = "reward"
    needs_processes: ClassVar[bool] = False

    @property
    def stops_processes(self) -> bool:
        """Whether the judge reads files, which are read while no process runs."""
        return bool(self.files)

    def __post_init__(self) -> None:
        if len(self.scale) < 2 or list(self.scale) != sorted(set(self.scale)):
            raise UsageError(f"the judge's scale {list(self.scale)!r} does not rise")
        if self.votes < 1 or self.votes % 2 == 0:
            raise UsageError(f"the judge needs an odd number of votes, not {self.votes}")

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Ask the judge.

        Raises:
            EvidenceMissingError: There is neither a task nor a prompt, or `files` have no live
                world to be read from.
            RewardError: The judge failed, or it rewarded the control answer.
        """
        if evidence.judge is not None:
            judge = evidence.judge
            client = replace(self.client, endpoint=judge.endpoint, model=judge.model)
            return await replace(self, client=client).score(node, replace(evidence, judge=None))
        instruction = self._instruction(node, evidence)
        documents = await self._documents(node, evidence)
        async with httpx.AsyncClient(timeout=None, follow_redirects=False) as http:  # noqa: S113 - ask() has the deadline
            control, _ = await self._vote(http, instruction, {"answer": _CONTROL_ANSWER})
            if control != self.scale[0]:
                raise RewardError(
                    f"judge_canary: the judge {self.client.model!r} gave a meaningless control "
                    f"answer {control} of {self.scale[-1]}",
                    hint="use a stronger judge model, or sharper criteria",
                )
            ballots = [await self._vote(http, instruction, documents) for _ in range(self.votes)]
        scores = [score for score, _ in ballots]
        median = statistics.median(scores)
        low, high = self.scale[0], self.scale[-1]
        return VerifyResult(
            reward=(median - low) / (high - low),
            items={f"vote_{i}": float(score) for i, score in enumerate(scores, 1)},
            meta={
                "judge": self.client.model,
                "scale": list(self.scale),
                "rationales": [rationale for _, rationale in ballots],
            },
        )

    def _instruction(self, node: RolloutNode, evidence: Evidence) -> str:
        """Return the task's instruction; of a production trace, what its user wrote first."""
        prompt = next((step.prompt for step in node.steps if step.prompt), None)
        if evidence.task is None and prompt is not None:
            return prompt
        return evidence.require_task(self.name).instruction

    async def _documents(self, node: RolloutNode, evidence: Evidence) -> dict[str, str]:
        documents: dict[str, str] = {}
        for file in self.files or (None,):
            answer = await read_answer(node, evidence, file, self.name)
            text = "" if answer.data is None else answer.data.decode("utf-8", "replace")
            documents[file or "last message"] = text or f"[nothing: {answer.reason or 'empty'}]"
        return documents

    async def _vote(
        self, http: httpx.AsyncClient, instruction: str, documents: Mapping[str, str]
    ) -> tuple[int, str]:
        chat = messages(
            criteria=self.criteria, instruction=instruction, documents=documents, scale=self.scale
        )
        return self._checked(await self.client.ask(http, chat, schema(self.scale)))

    def _checked(self, verdict: JsonValue) -> tuple[int, str]:
        if not isinstance(verdict, dict) or verdict.keys() != {"score", "rationale"}:
            raise RewardError("the judge's verdict is not {score, rationale}")
        score, rationale = verdict["score"], verdict["rationale"]
        if isinstance(score, bool) or not isinstance(score, int) or score not in self.scale:
            raise RewardError(f"the judge's score {score!r} is not on {list(self.scale)!r}")
        if not isinstance(rationale, str):
            raise RewardError("the judge's rationale is not text")
        return score, rationale[:MAX_RATIONALE_CHARS]
