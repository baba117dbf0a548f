"""Options from the environment and from a file."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow_contracts import UsageError
from benchflow_kernel.resolve import Origin
from cyclopts import App, ArgumentCollection
from cyclopts.config import Dict, Env, Toml, Yaml
from cyclopts.token import Token


@dataclass(frozen=True, slots=True)
class FlagFile:
    """The options of one command, from a flat file."""

    source: Toml | Yaml

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Set the arguments that the command line and the environment do not set."""
        # Nested below the command's name: at the root, cyclopts drops a key that is also the
        # name of a command, such as `agent` and `sandbox`.
        data: dict[str, Any] = self.source.config
        for word in reversed(commands):
            data = {word: data}
        Dict(data, source=str(self.source.path))(app, commands, arguments)


_FLAG_ORIGINS: ContextVar[Mapping[str, Origin]] = ContextVar("flag_origins")


class OriginRecorder:
    """Records where each flag of the command comes from. It changes no argument."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Record the origin of every argument that has a value. Comes after all sources."""
        del app, commands
        origins: dict[str, Origin] = {}
        for argument in arguments:
            if argument.tokens:
                name = argument.name.removeprefix("--").replace("-", "_")
                origins[name] = _origin(argument.name, argument.tokens[-1])
        _FLAG_ORIGINS.set(origins)


def flag_origins() -> Mapping[str, Origin]:
    """Return the origin of each flag of this command that is not a default, by its name."""
    return _FLAG_ORIGINS.get({})


def _origin(flag: str, token: Token) -> Origin:
    match token.source:
        case "cli":
            return Origin("flag", flag)
        case "env":
            return Origin("variable", f"${token.keyword}")
        case file:
            return Origin("file", f"{file}:{flag.removeprefix('--')}")


Config = Env | FlagFile | OriginRecorder

_READERS: dict[str, type[Toml] | type[Yaml]] = {".toml": Toml, ".yaml": Yaml, ".yml": Yaml}


def take_config(words: list[str]) -> tuple[list[str], list[Config]]:
    """Remove `--config FILE` from `words`; return the other words and the sources of options.

    An option on the command line overrides `BENCHFLOW_<OPTION>`, which overrides the file,
    which overrides the default. A key of the file is an option's name with `-` or `_`. An
    unknown key is an error.

    Raises:
        UsageError: The file is missing, or is neither TOML nor YAML.
    """
    sources: list[Config] = [Env("BENCHFLOW_", command=False, show=False)]
    words = [part for word in words for part in _split(word)]
    if "--config" not in words:
        return words, [*sources, OriginRecorder()]
    at = words.index("--config")
    if at + 1 == len(words):
        raise UsageError("--config needs a file", hint="for example --config job.toml")
    path = Path(words[at + 1])
    reader = _READERS.get(path.suffix)
    if reader is None or not path.is_file():
        raise UsageError(
            f"--config {str(path)!r} is not a TOML or YAML file",
            hint="give a file that ends in .toml, .yaml or .yml",
        )
    source = reader(path, must_exist=True)
    try:
        _ = source.config
    except Exception as error:
        raise UsageError(
            f"cannot read the options: {error}",
            where=str(path),
            hint="write one option on each line, such as `agent: oracle`",
        ) from error
    return words[:at] + words[at + 2 :], [*sources, FlagFile(source), OriginRecorder()]


SHORT = {"-a": "--agent", "-m": "--model"}
"""Short forms of the options of a rollout."""
SHORT_COMMANDS = ("run", "demo", "eval create")
"""The commands with these short forms."""


def lengthen(words: list[str]) -> list[str]:
    """Return `words` with the long form of each short option of a run."""
    if words[0] not in SHORT_COMMANDS and " ".join(words[:2]) not in SHORT_COMMANDS:
        return words
    return [SHORT.get(word, word) for word in words]


def _split(word: str) -> list[str]:
    return ["--config", word.removeprefix("--config=")] if word.startswith("--config=") else [word]
