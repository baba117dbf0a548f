"""Sandboxes without a machine: each one waits for a file, and its tests earn 1."""

import asyncio
import os
from pathlib import Path
from typing import Any

from benchflow_contracts import ExecResult
from benchflow_testing.fakes import FakeCall, FakeSandboxProvider

PLACE = "WAITING_SANDBOXES"
"""The variable with the directory of the marks: `go`, and one file for each sandbox."""


class WaitingSandboxes(FakeSandboxProvider):
    """Creates a sandbox when the file `go` exists. Its mark has the id of the process."""

    def __init__(self, *, allow_unisolated: bool = False) -> None:
        super().__init__()
        self.on("/bin/sh -c set -eu", lambda call: _done())
        self.on("/bin/sh -c [ ! -x /bin/bash ]", self._earn)

    async def create(self, *args: Any, **options: Any) -> Any:
        place = Path(os.environ[PLACE])
        name = options["identity"].rollout
        (place / f"{name}.{os.getpid()}").touch()
        while not (place / "go").exists():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
        return await super().create(*args, **options)

    def _earn(self, call: FakeCall) -> ExecResult:
        call.sandbox.files.put("/logs/verifier/reward.txt", "1")
        return _done()


def _done() -> ExecResult:
    return ExecResult(exit_code=0, stdout="", stderr="", duration_sec=0)
