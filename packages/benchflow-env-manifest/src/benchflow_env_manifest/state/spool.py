"""Digest and move files that a backend creates inside the sandbox."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from benchflow_contracts import EnvironmentError_, TableState, TransferError

from benchflow_env_manifest.rows import read_rows
from benchflow_env_manifest.sandbox_shell import SandboxShell, tail_of

from .backend import ROOT
from .copies import MAX_FILE_BYTES

_DIGEST = 'cd "$1" && find . -type f -exec sha256sum {} + | LC_ALL=C sort'
# It prints the same lines; Python's library is several times faster.
_PYTHON = """cd "$1" && python3 -IS -c '
import hashlib, os, sys
def digest(path):
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            total.update(data)
    return total.hexdigest().encode()
paths = (os.path.join(folder, name) for folder, _, names in os.walk(b".") for name in names)
plain = (path for path in paths if os.path.isfile(path) and not os.path.islink(path))
sys.stdout.buffer.writelines(sorted(digest(path) + b"  " + path + b"\\n" for path in plain))
'"""
_LAYOUT = "find . -printf '%y %m %U %G %p %l\\n' | LC_ALL=C sort"
_SEC = 600


async def tree_digest(shell: SandboxShell, directory: str) -> str:
    """Return the digest of every file below `directory`, with owners and modes."""
    sums = _PYTHON if "python3" in await shell.tools() else _DIGEST
    script = f"{sums} && {_LAYOUT}"
    result = await shell.run(["sh", "-c", script, "sh", directory], timeout=_SEC)
    if not result.ok or result.stdout_dropped:
        raise EnvironmentError_(f"restore failed: the snapshot cannot be read: {tail_of(result)}")
    return "sha256:" + hashlib.sha256(result.stdout.encode()).hexdigest()


async def verify(shell: SandboxShell, directory: str, digest: str) -> None:
    """Refuse a copy that is missing or was changed."""
    if await tree_digest(shell, directory) != digest:
        raise EnvironmentError_("restore failed: the snapshot does not match its digest")


def free_path() -> str:
    """Return an unused path that only root can read."""
    return f"{ROOT}/{uuid4().hex}.spool"


async def move_rows(
    shell: SandboxShell, remote: str, folder: Path, name: str
) -> Mapping[str, TableState]:
    """Move a file of JSON lines out of the sandbox and return its tables."""
    local = folder / "rows"
    try:
        await shell.sandbox.download(remote, local, max_bytes=MAX_FILE_BYTES)
    except TransferError as exc:
        raise EnvironmentError_(f"the state of {name!r} cannot be read: {exc}") from exc
    finally:
        await shell.run(["rm", "-f", remote])
    return read_rows(local, name)
