"""`--env-file`: variables of the agent from a file, so that no secret is on a command line."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from benchflow_contracts import UsageError
from benchflow_engine.options import RunOptions
from cyclopts import Parameter

_TEXT = (
    "File of KEY=VALUE lines, as `docker run --env-file` reads it: variables of the agent. "
    "The variables that --api-key-env and --forward-env name are read from it too, and are not "
    "given to the agent. Values of 6 and more characters are redacted in records. Repeatable."
)
EnvFile = Annotated[tuple[Path, ...], Parameter(name="--env-file", help=_TEXT)]


def with_env_files(options: RunOptions, files: Sequence[Path]) -> RunOptions:
    """Return `options` with the variables of `files`; --agent-env and later files override.

    Variables that `options` look up on this machine go into this process's environment instead.

    Raises:
        UsageError: A file cannot be read, or a line is not KEY=VALUE. The value is not quoted.
    """
    found: dict[str, str] = {}
    for file in files:
        found |= read_env_file(file)
    looked_up = {options.api_key_env, *options.forward_env}
    os.environ.update({name: value for name, value in found.items() if name in looked_up})
    env = {name: value for name, value in found.items() if name not in looked_up}
    return options.model_copy(update={"agent_env": {**env, **options.agent_env}})


def read_env_file(file: Path) -> dict[str, str]:
    """Return the variables of a file.

    Empty lines and lines that begin with `#` are left out. `KEY` alone has the value of this
    process's variable, and is left out if there is none. Quotes are part of the value.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(
            f"--env-file {str(file)!r} cannot be read: {reason}",
            hint="name a file of KEY=VALUE lines",
        ) from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.lstrip()
        if not text or text.startswith("#"):
            continue
        name, is_pair, value = text.partition("=")
        if not name or "\0" in line or any(char.isspace() for char in name):
            raise UsageError(
                f"--env-file {str(file)!r}: line {number} is not KEY=VALUE",
                hint="write one KEY=VALUE on each line, without spaces before the =",
            )
        if is_pair:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found
