"""Reads the code blocks of a Markdown page and runs them in order."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"(?P<skip><!-- not run: [^>]+ -->\n)?^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

RUN_PYTHON = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
result = eval(code, {"__name__": "__main__"})
if code.co_flags & inspect.CO_COROUTINE:
    asyncio.run(result)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block; `title` is the file that it is the content of."""

    language: str
    title: str | None
    code: str
    line: int
    skip: bool


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            language=match["language"],
            title=match["title"],
            code=match["code"],
            line=text.count("\n", 0, match.start()) + 1,
            skip=match["skip"] is not None,
        )
        for match in FENCE.finditer(text)
    ]


def run_page(page: Path, cwd: Path, programs: Path) -> int:
    """Run every block of `page` in `cwd`, `programs` first on PATH; return how many were run."""
    ran = 0
    for block in blocks(page):
        if block.title is not None:
            file = cwd / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.code)
            if block.code.startswith("#!"):
                file.chmod(0o755)
        elif block.language in {"bash", "python"} and not block.skip:
            _run(block, page, cwd, programs)
            ran += 1
    return ran


def _run(block: Block, page: Path, cwd: Path, programs: Path) -> None:
    where = f"{page.name}:{block.line}"
    command = (
        ["bash", "-euo", "pipefail", "-c", block.code]
        if block.language == "bash"
        else [str(programs / "run-python"), RUN_PYTHON, where]
    )
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "NO_COLOR": "1"}
    # Users have no such variable, and a server must not hold back its address.
    env.pop("PYTHONUNBUFFERED", None)
    done = subprocess.run(
        command,
        cwd=cwd,
        input=block.code,
        capture_output=True,
        text=True,
        timeout=240,
        env=env,
        check=False,
    )
    assert done.returncode == 0, f"{where}\n{block.code}\n{done.stdout}\n{done.stderr}"
