"""Install an agent on the host, once, into the user's cache."""

import asyncio
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from benchflow_contracts import AgentError, Bundle
from pydantic import BaseModel

from .command import run_tool
from .declaration import AgentDecl
from .interpreters import Interpreter, find_node, find_python

_INSTALL_SEC = 900.0
_SANDBOX_ROOT = Path("/opt/benchflow")
"""Where the sandbox has the installations: its user cannot enter a home of the host."""


class Installation(BaseModel):
    """An installed agent: the bundles for the sandbox, and the directories of its programs."""

    bundles: tuple[Bundle, ...] = ()
    path: tuple[str, ...] = ()
    """Directories to put in front of PATH inside the sandbox."""
    env: dict[str, str] = {}


def cache_dir() -> Path:
    """Return the directory of the installed agents."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "benchflow" / "agents"


async def install(decl: AgentDecl) -> Installation:
    """Return the installation of an agent; install the agent if the cache does not have it.

    The installation is built beside its target and then renamed, so nothing reads half of it.
    A second process waits for the first.

    Raises:
        AgentError: An interpreter or an installer is missing, or the package manager failed.
    """
    installation = await asyncio.to_thread(find_installation, decl)
    if installation is not None:
        return installation
    target = _target(decl)
    async with _locked(target.with_name(target.name + ".lock")):
        return _read_record(target) or await _build(decl, target)


def find_installation(decl: AgentDecl) -> Installation | None:
    """Return the installation of an agent, or `None` if the agent must be installed first."""
    source = decl.distribution
    if source.binary is not None:
        path = source.binary.path
        return Installation(bundles=(_binary(Path(path)),) if path else ())
    if source.builtin is not None:
        return Installation()
    return _read_record(_target(decl))


def _target(decl: AgentDecl) -> Path:
    return cache_dir() / f"{decl.id}-{decl.version}"


def _read_record(target: Path) -> Installation | None:
    try:
        installation = Installation.model_validate_json(_record(target).read_text())
    except FileNotFoundError:
        return None
    # The installation does not work if its interpreter was removed since.
    return (
        installation
        if all(Path(bundle.source).exists() for bundle in installation.bundles)
        else None
    )


async def _build(decl: AgentDecl, target: Path) -> Installation:
    scratch = _make_scratch(target)
    try:
        if decl.distribution.uvx is not None:
            package = decl.distribution.uvx.package
            installation = await _install_python(package, decl.runtime.python, scratch, target)
        else:
            assert decl.distribution.npx is not None
            package = decl.distribution.npx.package
            installation = await _install_node(package, decl.runtime.node, scratch, target)
        _publish(scratch, target, installation)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return installation


def _make_scratch(target: Path) -> Path:
    _record(target).unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    # The agent runs as another user than the installer.
    scratch.chmod(0o755)
    return scratch


def _publish(scratch: Path, target: Path, installation: Installation) -> None:
    scratch.rename(target)
    # Write the record beside the tree: the tree's key must not depend on host paths.
    _record(target).write_text(installation.model_dump_json())


def _record(target: Path) -> Path:
    return target.with_name(f"{target.name}.json")


async def _install_python(
    package: str, requirement: str | None, scratch: Path, target: Path
) -> Installation:
    uv = _uv()
    python = await find_python(requirement)
    venv = scratch / "venv"
    await run_tool(
        *uv, "venv", "--relocatable", "--python", str(python.path), str(venv), timeout=_INSTALL_SEC
    )
    # The installation is read-only inside the sandbox, so compile it here.
    await run_tool(
        *uv, "pip", "install", "--compile-bytecode", "--python", str(venv / "bin" / "python"),
        package, timeout=_INSTALL_SEC,
    )  # fmt: skip
    _retarget(venv, python)
    installation = await _installation(scratch, target, "venv/bin", python)
    if python.in_system or not list((python.prefix / "lib").glob("libpython*.so*")):
        return installation
    # A Python with a shared library looks for the library at its build path.
    return installation.model_copy(
        update={"env": {"LD_LIBRARY_PATH": str(_path_in_sandbox(python) / "lib")}}
    )


async def _install_node(
    package: str, requirement: str | None, scratch: Path, target: Path
) -> Installation:
    node = await find_node(requirement)
    path = os.pathsep.join((str(node.path.parent), os.environ.get("PATH", "")))
    await run_tool(
        *_npm(node), "install", "--no-audit", "--no-fund", "--prefix", str(scratch), package,
        timeout=_INSTALL_SEC, env={"PATH": path},
    )  # fmt: skip
    _link_only_program(scratch / "node_modules", package)
    installation = await _installation(scratch, target, "node_modules/.bin", node)
    inside = _path_in_sandbox(node) / node.path.relative_to(node.prefix)
    return installation.model_copy(update={"path": (*installation.path, str(inside.parent))})


def _link_only_program(modules: Path, package: str) -> None:
    """Give the only program of a package the package's name, by which `npx` also finds it."""
    scope, _, rest = package.rpartition("/")
    name = rest.partition("@")[0]
    description = modules / scope / name / "package.json"
    programs: object = None
    if description.is_file():
        programs = json.loads(description.read_bytes()).get("bin")
    names = list(cast("dict[str, str]", programs)) if isinstance(programs, dict) else []
    link = modules / ".bin" / name
    if len(names) == 1 and not link.exists():
        link.symlink_to(names[0])


def _npm(node: Interpreter) -> tuple[str, ...]:
    own = node.prefix / "lib/node_modules/npm/bin/npm-cli.js"
    if own.is_file():
        return (str(node.path), str(own))
    npm = shutil.which("npm")
    if npm is None:
        raise AgentError("npm was not found", hint="install npm beside Node.js")
    return (npm,)


def _retarget(venv: Path, python: Interpreter) -> None:
    """Change the interpreter path of a venv to the path inside the sandbox.

    The venv then does not work on the host, where nothing uses it.
    """
    if python.in_system:
        return
    config = venv / "pyvenv.cfg"
    lines = config.read_text().splitlines()
    home = _path_in_sandbox(python) / "bin"
    other_lines = [line for line in lines if not line.startswith("home")]
    config.write_text("\n".join([f"home = {home}", *other_lines, ""]))
    link = venv / "bin" / "python"
    link.unlink()
    link.symlink_to(home / python.path.resolve().name)


async def _installation(
    scratch: Path, target: Path, programs: str, interpreter: Interpreter
) -> Installation:
    inside = _SANDBOX_ROOT / "agents" / target.name
    built = await asyncio.to_thread(Bundle.of, scratch, inside)
    bundles = [built.model_copy(update={"source": str(target)})]
    if not interpreter.in_system:
        prefix, shown = interpreter.prefix, _path_in_sandbox(interpreter)
        bundles.append(await asyncio.to_thread(Bundle.of, prefix, shown))
    return Installation(bundles=tuple(bundles), path=(str(inside / programs),))


def _binary(path: Path) -> Bundle:
    """Return the bundle of a program. If it is missing, the sandbox refuses the bundle."""
    if not path.exists():
        return Bundle(source=str(path), target=str(path), key="missing")
    return Bundle.of(path, path)


def _path_in_sandbox(interpreter: Interpreter) -> Path:
    if interpreter.in_system:
        return interpreter.prefix
    version = ".".join(map(str, interpreter.version))
    return _SANDBOX_ROOT / "runtimes" / f"{interpreter.path.resolve().name}-{version}"


def _uv() -> tuple[str, ...]:
    program = shutil.which("uv")
    if program:
        return (program,)
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
                # Poll instead of blocking in a thread, which a cancelled caller would leave behind.
                await asyncio.sleep(0.2)
            else:
                break
        yield
