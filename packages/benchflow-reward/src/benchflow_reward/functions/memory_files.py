"""MemoryFiles: a reward for the files of the agent's memory or skills."""

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from benchflow_contracts import (
    Evidence,
    RewardError,
    RewardEvent,
    RolloutNode,
    SandboxError,
    VerifyResult,
)
from benchflow_contracts.scratch import scratch_directory

from benchflow_reward.collect import Collected, collect
from benchflow_reward.matcher import search

MAX_MEMORY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFiles:
    """1 if a file of the agent's memory fits, else 0. Memory space.

    `directory` is a memory or skills directory inside the agent's sandbox. At least
    one file below it fits the glob `files` and, when given, contains `pattern`.
    """

    directory: str
    files: str = "*"
    pattern: str | None = None
    name: str = "memory"
    needs_processes: ClassVar[bool] = False
    stops_processes: ClassVar[bool] = True

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Read the directory out of the live sandbox.

        Raises:
            EvidenceMissingError: There is no live world.
            RewardError: The sandbox failed, or the pattern is bad.
        """
        del node  # the files are in the sandbox
        world = evidence.require_world(self.name)
        with scratch_directory("memory") as scratch:
            try:
                [item] = await collect(
                    world.sandbox,
                    [self.directory],
                    scratch,
                    max_bytes=MAX_MEMORY_BYTES,
                    may_kill=world.may_end_processes,
                )
            except SandboxError as error:
                raise RewardError(f"{self.name!r} cannot read the memory: {error}") from error
            texts = await asyncio.to_thread(self._read, item)
        names = sorted(texts)
        if self.pattern is not None:
            hits = await search(self.pattern, [texts[name] for name in names])
            names = [name for name, hit in zip(names, hits, strict=True) if hit]
        return self._result(item, names)

    def _read(self, item: Collected) -> dict[str, str]:
        if item.local is None or not item.local.is_dir():
            return {}
        return {
            str(path.relative_to(item.local)): path.read_text("utf-8", errors="replace")
            for path in item.local.rglob(self.files)
            if path.is_file()
        }

    def _result(self, item: Collected, names: list[str]) -> VerifyResult:
        return VerifyResult(
            reward=1.0 if names else 0.0,
            items={"files": float(len(names))},
            events=tuple(
                RewardEvent(source=self.name, value=1.0, space="memory", tag=name) for name in names
            ),
            space="memory",
            meta={"directory": self.directory, "outcome": item.outcome},
        )
