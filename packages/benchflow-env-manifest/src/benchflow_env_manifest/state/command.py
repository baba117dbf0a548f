"""Copy and restore state with the manifest's own commands."""

import logging
import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import EnvironmentError_, EnvState, SandboxError

from benchflow_env_manifest.sandbox_shell import SandboxShell
from benchflow_env_manifest.state_tables import CommandTable

from .backend import StateBackend, Tables
from .spool import free_path, move_rows, tree_digest, verify

_SEC = 600
_log = logging.getLogger(__name__)


class CommandState(StateBackend):
    """State of the manifest's commands, which run as root from `/`.

    `snapshot` and `restore` get their directory in `BENCHFLOW_STATE_DIR`. The author must
    make them correct while services write; `quiesce` and `resume` help with that.
    """

    online = True

    def __init__(self, shell: SandboxShell, table: CommandTable) -> None:
        self._shell = shell
        self._table = table
        self.name = table.name
        self.label = f"command {table.name!r}"

    @asynccontextmanager
    async def hold(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Run `quiesce`, and `resume` at the end."""
        del persist
        if self._table.quiesce:
            await self._run(self._table.quiesce, "quiesce")
        try:
            yield
        finally:
            await self._resume()

    async def capture(self, directory: str) -> str:
        """Run `snapshot` in a new directory."""
        await self._shell.must(["mkdir", "-m", "700", directory], what="creating a directory")
        await self._run(self._table.snapshot, "snapshot", directory)
        return await tree_digest(self._shell, directory)

    async def restore(self, directory: str, digest: str) -> None:
        """Run `restore`; if it fails, restore the previous state."""
        await verify(self._shell, directory, digest)
        before = free_path()
        await self.capture(before)
        try:
            await self._run(self._table.restore, "restore", directory)
        except BaseException:
            await self._run(self._table.restore, "restore", before)
            raise
        finally:
            await self._shell.run(["rm", "-rf", before])

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Run `query`, which prints JSON lines."""
        del still
        if not self._table.query:
            return EnvState()
        spool = free_path()
        await self._run(f"umask 077; {{ {self._table.query}\n}} > {shlex.quote(spool)}", "query")
        tables = await move_rows(self._shell, spool, folder, self._table.name)
        return EnvState(databases={self._table.name: tables})

    async def check(self, folder: Path, *, still: bool) -> None:
        """Run `check`."""
        del folder, still
        if self._table.check:
            await self._run(self._table.check, "check")

    async def release(self, holder: str) -> None:
        """Run `resume` for the `quiesce` of a live image."""
        del holder
        await self._resume()

    def is_unchanged(self, then: Tables, now: Tables) -> bool:
        """Return whether `query` prints the same; without `quiesce` it may differ."""
        return not self._table.quiesce or then == now

    async def _resume(self) -> None:
        if self._table.resume:
            try:
                await self._run(self._table.resume, "resume")
            except (EnvironmentError_, SandboxError) as exc:
                _log.warning("%s did not resume: %s", self.label, exc)

    async def _run(self, command: str, what: str, directory: str = "") -> None:
        env = ["env", f"BENCHFLOW_STATE_DIR={directory}"] if directory else []
        label = f"{what} of {self._table.name!r}"
        await self._shell.must([*env, "sh", "-c", command], what=label, timeout=_SEC)
