"""An executor whose rollouts do what their payload says."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from benchflow_contracts.events import Event
from benchflow_contracts.job import Completion, Dispatch
from benchflow_contracts.tree import NodeError

FakeRollout = Literal["score", "fail", "raise", "wait", "refuse", "forge"]
"""What a rollout does. `score` and `fail` end with a score or without one. `raise` raises an error.
`wait` waits for `ROLLOUT.go`, then scores. `refuse` does so too, and ignores the first
cancellation. `forge` returns the completion of another slot."""


class FakeExecutor:
    """Does what `payload["do"]` says, a `FakeRollout` (default: `score`).

    With a directory in `payload["at"]`, each rollout creates `ROLLOUT.started` and, if it is
    cancelled, `ROLLOUT.cancelled` there, with the id of its process. So a test can follow it from
    another process. A rollout that starts twice fails.
    """

    def __init__(self) -> None:
        self.dispatches: list[Dispatch] = []

    async def run(self, dispatch: Dispatch, on_event: Callable[[Event], None]) -> Completion:
        """Run the rollout; see `Executor`."""
        del on_event
        self.dispatches.append(dispatch)
        does = dispatch.payload.get("do", "score")
        _mark(dispatch, "started")
        if does in {"wait", "refuse"}:
            await self._wait(dispatch, refuse=does == "refuse")
        if does == "raise":
            raise ValueError("the executor has a defect")
        if does == "fail":
            failure = NodeError(boundary="agent", type="AgentError", message="it gave up")
            return Completion.of(dispatch, "unscored", error=failure)
        if does == "forge":
            dispatch = dispatch.model_copy(update={"index": dispatch.index + 1000, "slot": "other"})
        return Completion.of(dispatch, "scored", record={"reward": 1.0})

    async def _wait(self, dispatch: Dispatch, *, refuse: bool) -> None:
        go = Path(str(dispatch.payload["at"])) / f"{dispatch.rollout}.go"
        while not go.exists():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                _mark(dispatch, "cancelled")
                if not refuse:
                    raise
                refuse = False


def _mark(dispatch: Dispatch, name: str) -> None:
    if "at" in dispatch.payload:
        path = Path(str(dispatch.payload["at"])) / f"{dispatch.rollout}.{name}"
        with path.open("x" if name == "started" else "w") as file:
            file.write(str(os.getpid()))
