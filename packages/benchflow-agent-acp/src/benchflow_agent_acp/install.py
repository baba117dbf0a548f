"""Installing an agent on the host, once, into the user's cache."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

from benchflow_contracts import AgentError, Mount
from pydantic import BaseModel

from .command import run_tool
from .declaration import AgentDecl
from .interpreters import Interpreter, find_node, find_python

_INSTALL_SEC = 900.0
_RECORD = "benchflow-install.json"


class Installation(BaseModel):
    """An installed agent: what to show to the sandbox, and where its programs are."""

    mounts: tuple[Mount, ...] = ()
    path: tuple[str, ...] = ()
    """Directories to put in front of PATH inside the sandbox."""


def cache_dir() -> Path:
    """Return the directory of the installed agents."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "benchflow" / "agents"


async def install(decl: AgentDecl) -> Installation:
    """Make the agent available; install it when it is not in the cache yet.

    A half-made installation is never seen: it is built beside its place and moved
    there. A second process waits for the first one.

    Raises:
        AgentError: An interpreter or an installer is missing, or the package manager failed.
    """
    source = decl.distribution
    if source.binary is not None:
        path = source.binary.path
        return Installation(mounts=(_mount(Path(path)),) if path else ())
    if source.builtin is not None:
        return Installation()
    place = cache_dir() / f"{decl.id}-{decl.version}"
    done = _read(place)
    if done is not None:
        return done
    async with _locked(place.with_name(place.name + ".lock")):
        return _read(place) or await _build(decl, place)


def _read(place: Path) -> Installation | None:
    try:
        done = Installation.model_validate_json((place / _RECORD).read_text())
    except FileNotFoundError:
        return None
    # An interpreter that was removed since makes the installation useless.
    return done if all(Path(mount.source).exists() for mount in done.mounts) else None


async def _build(decl: AgentDecl, place: Path) -> Installation:
    shutil.rmtree(place, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        # The agent runs as another user than the one who installs it.
        scratch.chmod(0o755)
        if decl.distribution.uvx is not None:
            package = decl.distribution.uvx.package
            done = await _install_python(package, decl.runtime.python, scratch, place)
        else:
            assert decl.distribution.npx is not None
            package = decl.distribution.npx.package
            done = await _install_node(package, decl.runtime.node, scratch, place)
        (scratch / _RECORD).write_text(done.model_dump_json())
        scratch.rename(place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return done


async def _install_python(
    package: str, requirement: str | None, scratch: Path, place: Path
) -> Installation:
    uv = _uv()
    python = await find_python(requirement)
    venv = scratch / "venv"
    await run_tool(
        *uv, "venv", "--relocatable", "--python", str(python.path), str(venv), timeout=_INSTALL_SEC
    )
    # Inside, the installation is read-only, so it is compiled here.
    await run_tool(
        *uv, "pip", "install", "--compile-bytecode", "--python", str(venv / "bin" / "python"),
        package, timeout=_INSTALL_SEC,
    )  # fmt: skip
    return _installation(place, place / "venv" / "bin", python)


async def _install_node(
    package: str, requirement: str | None, scratch: Path, place: Path
) -> Installation:
    node = await find_node(requirement)
    npm = shutil.which("npm")
    if npm is None:
        raise AgentError("npm was not found", hint="install npm beside Node.js")
    path = os.pathsep.join((str(node.path.parent), os.environ.get("PATH", "")))
    await run_tool(
        npm, "install", "--no-audit", "--no-fund", "--prefix", str(scratch), package,
        timeout=_INSTALL_SEC, env={"PATH": path},
    )  # fmt: skip
    done = _installation(place, place / "node_modules" / ".bin", node)
    return done.model_copy(update={"path": (*done.path, str(node.path.parent))})


def _installation(place: Path, programs: Path, interpreter: Interpreter) -> Installation:
    mounts = [_mount(place)]
    if not interpreter.in_system:
        mounts.append(_mount(interpreter.prefix))
    return Installation(mounts=tuple(mounts), path=(str(programs),))


def _mount(path: Path) -> Mount:
    """Show a host directory at its own path: installed scripts hold absolute paths."""
    return Mount(source=str(path), target=str(path))


def _uv() -> tuple[str, ...]:
    found = shutil.which("uv")
    if found:
        return (found,)
    if find_spec("uv") is not None:
        return (sys.executable, "-m", "uv")
    raise AgentError("uv was not found", hint="install it with `pip install uv`")


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Waited for by polling, so that a cancelled caller leaves no thread behind.
                await asyncio.sleep(0.2)
            else:
                break
        yield
