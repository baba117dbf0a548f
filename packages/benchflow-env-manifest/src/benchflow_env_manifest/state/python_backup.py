"""Copies of live databases through the sandbox's Python."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchflow_contracts import EnvironmentError_

from benchflow_env_manifest.sandbox_shell import SandboxShell

_LOCK_SEC = 60
# A failed restore copies everything back before it ends; it must not be interrupted.
_TOTAL_SEC = 10 * _LOCK_SEC


class PythonBackup:
    """SQLite's online backup. All databases are captured at one instant."""

    def __init__(self, shell: SandboxShell) -> None:
        self._shell = shell

    async def capture(self, paths: Sequence[str], directory: str) -> str:
        """Copy into the new `directory`; return the digest of the contents."""
        answer = await self._ask({"do": "capture", "paths": paths, "directory": directory})
        return answer["digest"]

    async def restore(self, paths: Sequence[str], directory: str, digest: str, safety: str) -> None:
        """Restore `directory` if it still has `digest`; `safety` is an unused path."""
        request = {"do": "restore", "paths": paths, "directory": directory}
        await self._ask({**request, "digest": digest, "safety": safety})

    async def check(self, paths: Sequence[str]) -> None:
        """Let SQLite check every page of every database."""
        await self._ask({"do": "check", "paths": paths, "directory": ""})

    async def _ask(self, request: Mapping[str, Any]) -> Mapping[str, str]:
        answer = await self._shell.python(
            ["tables", "backup"], {**request, "timeout": _LOCK_SEC}, timeout=_TOTAL_SEC
        )
        if "error" in answer:
            raise EnvironmentError_(
                f"{request['do']} of {', '.join(request['paths'])} failed: {answer['error']}",
                hint="a service may hold a lock, or the disk of the sandbox may be full",
            )
        return answer
