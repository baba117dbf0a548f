"""`--env-file`: variables of the agent from a file, to keep secrets out of command lines."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from benchflow_contracts import UsageError
from benchflow_engine.config import RunConfig
from cyclopts import Parameter

_TEXT = (
    "File of KEY=VALUE lines, as `docker run --env-file` reads it: variables of the agent. "
    "The variables that --api-key-env and --forward-env name are also read from the file, but not "
    "given to the agent. Values of 6 or more characters are redacted in records. Repeatable."
)
EnvFile = Annotated[tuple[Path, ...], Parameter(name="--env-file", help=_TEXT)]


def with_env_files(config: RunConfig, files: Sequence[Path]) -> RunConfig:
    """Return `config` with the variables of `files`; --agent-env and later files override.

    Variables that `config` names on this machine go into this process's environment instead.

    Raises:
        UsageError: A file cannot be read, or a line is not KEY=VALUE. The error omits the value.
    """
    variables: dict[str, str] = {}
    for file in files:
        variables |= read_env_file(file)
    host_names = {config.model.api_key_env, *config.forward_env}
    os.environ.update({name: value for name, value in variables.items() if name in host_names})
    env = {name: value for name, value in variables.items() if name not in host_names}
    agent = config.agent.model_copy(update={"env": {**env, **config.agent.env}})
    return config.model_copy(update={"agent": agent})


def read_env_file(file: Path) -> dict[str, str]:
    """Return the variables of a file.

    Empty lines and lines that begin with `#` are skipped. `KEY` alone takes the value of this
    process's variable, and is skipped if the variable is not set. Quotes are part of the value.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(
            f"--env-file {str(file)!r} cannot be read: {reason}",
            hint="name a file of KEY=VALUE lines",
        ) from None
    variables: dict[str, str] = {}
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
            variables[name] = value
        elif name in os.environ:
            variables[name] = os.environ[name]
    return variables
