"""Clients for the tests: a counter that is fair, and parts of it that are not."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchflow_env_outside import Conversation, WorldAnswer, WorldTool


class Counter:
    """Counts up by `add`; the episode is over at 3. Each session has its own count."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.count = 0
        self.log = [] if log is None else log

    async def open(self, task: Mapping[str, Any], seed: int) -> WorldAnswer:
        self.log.append("open")
        return WorldAnswer(f"Count {task.get('what', 'sheep')} from {seed}.")

    async def tools(self) -> Sequence[WorldTool]:
        return [WorldTool("add", "Add one.")]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        self.log.append(name)
        if arguments:
            return WorldAnswer("add takes no arguments", failed=True)
        self.count += 1
        return WorldAnswer(f"{self.count}", reward=0.5, finished=self.count == 3)

    async def close(self) -> None:
        self.log.append("close")


class JudgedCounter(Counter):
    """Also gives the number of messages at the end."""

    async def finish(self, conversation: Conversation) -> WorldAnswer:
        self.log.append("finish")
        return WorldAnswer(reward=float(len(conversation.steps)), parts={"calls": self.count})


class CopiedCounter(Counter):
    """Copies its count."""

    async def snapshot(self) -> object:
        return self.count

    async def restore(self, task: Mapping[str, Any], seed: int, snapshot: object) -> None:
        del task, seed
        assert isinstance(snapshot, int)
        self.count = snapshot
