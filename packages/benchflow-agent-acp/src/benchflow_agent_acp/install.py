"""Installing an agent on the host, once, into the user's cache."""

import asyncio
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from benchflow_contracts import AgentError, Mount
from pydantic import BaseModel

from .command import run_tool
from .declaration import AgentDecl
from .interpreters import Interpreter, find_node, find_python

_INSTALL_SEC = 900.0
_RECORD = "benchflow-install.json"
_INSIDE = Path("/opt/benchflow")
"""Where the sandbox shows them: the agent's user cannot enter a home of the host."""


class Installation(BaseModel):
    """An installed agent: what to show to the sandbox, and where its programs are."""

    mounts: tuple[Mount, ...] = ()
    path: tuple[str, ...] = ()
    """Directories to put in front of PATH inside the sandbox."""
    env: dict[str, str] = {}


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
        return Installation(mounts=(Mount(source=path, target=path),) if path else ())
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
    scratch = _scratch(place)
    try:
        if decl.distribution.uvx is not None:
            package = decl.distribution.uvx.package
            done = await _install_python(package, decl.runtime.python, scratch, place)
        else:
            assert decl.distribution.npx is not None
            package = decl.distribution.npx.package
            done = await _install_node(package, decl.runtime.node, scratch, place)
        _publish(scratch, place, done)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return done


def _scratch(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    # The agent runs as another user than the one who installs it.
    scratch.chmod(0o755)
    return scratch


def _publish(scratch: Path, place: Path, done: Installation) -> None:
    (scratch / _RECORD).write_text(done.model_dump_json())
    scratch.rename(place)


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
    _retarget(venv, python)
    done = _installation(place, "venv/bin", python)
    if python.in_system or not list((python.prefix / "lib").glob("libpython*.so*")):
        return done
    # A Python with a shared library looks for it where it was built.
    return done.model_copy(update={"env": {"LD_LIBRARY_PATH": str(_inside(python) / "lib")}})


async def _install_node(
    package: str, requirement: str | None, scratch: Path, place: Path
) -> Installation:
    node = await find_node(requirement)
    path = os.pathsep.join((str(node.path.parent), os.environ.get("PATH", "")))
    await run_tool(
        *_npm(node), "install", "--no-audit", "--no-fund", "--prefix", str(scratch), package,
        timeout=_INSTALL_SEC, env={"PATH": path},
    )  # fmt: skip
    done = _installation(place, "node_modules/.bin", node)
    inside = _inside(node) / node.path.relative_to(node.prefix)
    return done.model_copy(update={"path": (*done.path, str(inside.parent))})


def _npm(node: Interpreter) -> tuple[str, ...]:
    own = node.prefix / "lib/node_modules/npm/bin/npm-cli.js"
    if own.is_file():
        return (str(node.path), str(own))
    npm = shutil.which("npm")
    if npm is None:
        raise AgentError("npm was not found", hint="install npm beside Node.js")
    return (npm,)


def _retarget(venv: Path, python: Interpreter) -> None:
    """Make a venv refer to its interpreter where the sandbox shows it.

    It does not work on the host any more, where nothing runs it.
    """
    if python.in_system:
        return
    config = venv / "pyvenv.cfg"
    lines = config.read_text().splitlines()
    home = _inside(python) / "bin"
    kept = [line for line in lines if not line.startswith("home")]
    config.write_text("\n".join([f"home = {home}", *kept, ""]))
    link = venv / "bin" / "python"
    link.unlink()
    link.symlink_to(home / python.path.resolve().name)


def _installation(place: Path, programs: str, interpreter: Interpreter) -> Installation:
    target = _INSIDE / "agents" / place.name
    mounts = [Mount(source=str(place), target=str(target))]
    if not interpreter.in_system:
        mounts.append(Mount(source=str(interpreter.prefix), target=str(_inside(interpreter))))
    return Installation(mounts=tuple(mounts), path=(str(target / programs),))


def _inside(interpreter: Interpreter) -> Path:
    if interpreter.in_system:
        return interpreter.prefix
    version = ".".join(map(str, interpreter.version))
    return _INSIDE / "runtimes" / f"{interpreter.path.resolve().name}-{version}"


def _uv() -> tuple[str, ...]:
    found = shutil.which("uv")
    if found:
        return (found,)
    if find_spec("uv") is not None:
        return (sys.executable, "-m", "uv")
    raise AgentError("uv was not found", hint="install it with `pip install uv`")


@asynccontextmanager
async def _locked(path: Path) -> AsyncGenerator[None]:
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
