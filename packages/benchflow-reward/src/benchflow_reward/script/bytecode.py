"""Remove the agent's bytecode from a twin and compile the sources again."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from benchflow_contracts import FileChanges, RewardError, Sandbox, SandboxTimeoutError

from .integrity import changes_by_path

_CACHED = re.compile(r"^(.+)/__pycache__/([^/]+)\.cpython-(\d)(\d+)\.pyc$")
_PLACES = ("/usr/local/bin", "/usr/bin")
_MAX_FILES = 5000
_COMPILE = """import os, py_compile, sys
for path in sys.stdin.buffer.read().decode('utf-8', 'surrogateescape').split('\\0'):
    try:
        if os.path.isfile(path) and os.path.getsize(path) < 1 << 20:
            py_compile.compile(path, doraise=True)
    except Exception:
        pass
"""
_TIMEOUT_SEC = 60


async def recompile_bytecode(sandbox: Sandbox, changes: FileChanges) -> None:
    """Replace bytecode by a compilation of the sources, because the report is about the sources.

    Many images bring no bytecode: the agent's first run compiled it, and tests in its own sandbox
    would find it. So it is compiled again, which runs none of the agent's code. A source that
    cannot be compiled, or whose interpreter the agent changed, stays without bytecode.

    Raises:
        RewardError: Bytecode could not be removed.
    """
    known = changes_by_path(changes)
    cached = [path for path in known if path.endswith(".pyc") and "/__pycache__/" in path]
    if not cached:
        return
    names = "\0".join([*cached, ""]).encode()
    cmd = ["xargs", "-0", "rm", "-f", "--"]
    done = await sandbox.exec(cmd, user="root", cwd="/", timeout=60, stdin=names)
    if not done.ok:
        raise RewardError(
            f"bytecode cannot be removed from a twin: {done.stderr[-300:]}", caused_by="inside"
        )
    for version, sources in _sources(cached).items():
        interpreter = [f"{place}/python{version}" for place in _PLACES]
        for python in interpreter:
            if _is_of_image(python, known) and await _compile_sources(sandbox, python, sources):
                break


def _sources(cached: Sequence[str]) -> Mapping[str, list[str]]:
    """Return the sources of bytecode, by the version of Python that reads it."""
    found: dict[str, list[str]] = {}
    for path in cached[:_MAX_FILES]:
        if match := _CACHED.match(path):
            directory, name, major, minor = match.groups()
            found.setdefault(f"{major}.{minor}", []).append(f"{directory}/{name}.py")
    return found


def _is_of_image(path: str, known: Mapping[str, object]) -> bool:
    """Whether the agent changed neither a program nor a directory on the way to it."""
    return not {path, *map(str, PurePosixPath(path).parents)} & known.keys()


async def _compile_sources(sandbox: Sandbox, python: str, sources: Sequence[str]) -> bool:
    """Compile files; return whether that interpreter is there."""
    cmd = ["/bin/sh", "-c", 'test -x "$0" || exit 127; exec "$0" -I -S -c "$1"', python, _COMPILE]
    names = "\0".join(sources).encode("utf-8", "surrogateescape")
    with suppress(SandboxTimeoutError):
        done = await sandbox.exec(cmd, user="root", cwd="/", timeout=_TIMEOUT_SEC, stdin=names)
        return done.exit_code != 127
    return True
