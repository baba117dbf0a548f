"""`bench tasks serve` as a process."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BENCH = Path(sys.executable).with_name("bench")


@contextmanager
def task_server(
    home: Path,
    *words: object,
    command: tuple[object, ...] = (BENCH,),
    environment: Mapping[str, str] | None = None,
) -> Generator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    """Yield what the server prints as JSON, and its process. At the end it gets SIGTERM."""
    given = ("tasks", "serve", *words, "--port", 0, "--jobs-dir", home / "jobs", "--json")
    with (
        (home / "server.log").open("w") as log,
        subprocess.Popen(
            [*map(str, (*command, *given))],
            cwd=home,
            env={**(os.environ if environment is None else environment), "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (home / "server.log").read_text()[-3000:]
            yield json.loads(line), process
        finally:
            process.terminate()
            process.wait(120)
