"""Copy and restore plain files and directories."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from benchflow_contracts import EnvironmentError_, EnvState
from benchflow_contracts.scratch import scratch_directory

from benchflow_env_manifest.guard import Guard
from benchflow_env_manifest.sandbox_shell import SandboxShell

from .backend import ROOT, StateBackend
from .copies import fetch
from .spool import tree_digest, verify

_SEC = 600


class FilesState(StateBackend):
    """Files and whole directories, copied at one instant.

    A copy is made while nothing changes, or under a freeze if a process never stops writing.
    A restore replaces files: a service with an open file sees the roll-back when it opens the
    file again. Links and devices are refused.
    """

    label = "files"

    def __init__(self, shell: SandboxShell, guard: Guard, paths: Sequence[str]) -> None:
        self._shell = shell
        self._guard = guard
        self.trees = tuple(paths)

    async def capture(self, directory: str) -> str:
        """Copy everything, as reflinks if the file system has them."""
        try:
            answer = await self._ask("capture", directory)
            if not answer["still"]:
                await self._capture_frozen(directory)
            return await tree_digest(self._shell, directory)
        except BaseException:
            await self._shell.run(["rm", "-rf", directory, f"{directory}.partial"])
            raise

    async def restore(self, directory: str, digest: str) -> None:
        """Replace the live files by a copy."""
        await verify(self._shell, directory, digest)
        await self._ask("restore", directory)

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return the digest of every file."""
        if still:
            local = await self._download(folder)
            return EnvState(files=await asyncio.to_thread(_digests, local))
        directory = f"{ROOT}/{uuid4().hex}"
        try:
            await self.capture(directory)
            target = folder / "captured"
            await self._shell.sandbox.download(directory, target)
            local = {path: target / str(index) for index, path in enumerate(self.trees)}
            return EnvState(files=await asyncio.to_thread(_digests, local))
        finally:
            await self._shell.run(["rm", "-rf", directory])

    async def _capture_frozen(self, directory: str) -> None:
        with scratch_directory("state") as folder:
            copies = folder / "copies"
            copies.mkdir()
            async with self._shell.sandbox.freeze():
                await self._download(copies)
            await self._shell.sandbox.upload(copies, directory)
        await self._ask("copy_owners", directory)

    async def _download(self, folder: Path) -> Mapping[str, Path]:
        existing = await self._guard.examine()
        local: dict[str, Path] = {}
        for index, path in enumerate(self.trees):
            target = folder / str(index)
            if await fetch(self._shell.sandbox, path, target, existing):
                local[path] = target
        return local

    async def _ask(self, do: str, directory: str) -> Mapping[str, str]:
        request = {"do": do, "paths": self.trees, "directory": directory}
        answer = await self._shell.python(["trees"], request, timeout=_SEC)
        if "error" in answer:
            raise EnvironmentError_(
                f"{do} of {', '.join(self.trees)} failed: {answer['error']}",
                hint="use only plain files and directories, and leave free space on the disk",
            )
        return answer


def _digests(local: Mapping[str, Path]) -> dict[str, str]:
    digests: dict[str, str] = {}
    for path, copy in local.items():
        below = [copy] if copy.is_file() else sorted(copy.rglob("*"))
        for file in below:
            if file.is_file():
                name = path if file == copy else f"{path}/{file.relative_to(copy).as_posix()}"
                with file.open("rb") as data:
                    digests[name] = f"sha256:{hashlib.file_digest(data, 'sha256').hexdigest()}"
    return digests
