"""Options from the environment and from a file.

Every command imports this module, and most commands run no rollout. The configuration of a rollout
is therefore imported where a file has one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from benchflow_contracts import UsageError
from cyclopts import App, ArgumentCollection
from cyclopts.config import Dict, Env, Toml, Yaml
from cyclopts.token import Token

Source = tuple[Literal["flag", "variable", "file"], str]
"""The kind and the place of the origin of a value."""

_TABLES: ContextVar[Mapping[str, Any]] = ContextVar("tables")
_SOURCES: ContextVar[Mapping[str, Source]] = ContextVar("sources")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The options of one command from a file, and the configuration of its rollouts."""

    path: Path
    data: Mapping[str, Any]

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Set the arguments that the command line and the environment do not set.

        The tables of a RunConfig are saved for `configuration`.

        Raises:
            UsageError: A key is unknown, or its value is wrong.
        """
        from benchflow_engine.config import RunConfig, read_tables
        from benchflow_engine.flags import FLAGS, flag_name

        flags = {argument.name: argument.name for argument in arguments}
        runs = all(flag_name(name) in flags for name in FLAGS)
        tables = {k: v for k, v in self.data.items() if runs and k in RunConfig.model_fields}
        read_tables(tables, str(self.path))
        _TABLES.set(tables)
        _SOURCES.set(dict(self._sources("", tables)))
        own = {name: value for name, value in self.data.items() if name not in tables}
        for name in own:
            if flag_name(name) not in flags or (runs and name in FLAGS):
                self._refuse(name, [*RunConfig.model_fields] if runs else [], flags)
        # Nested below the command's name: at the root, cyclopts drops a key that is also the
        # name of a command, such as `agent` and `sandbox`.
        data: dict[str, Any] = own
        for word in reversed(commands):
            data = {word: data}
        Dict(data, source=str(self.path))(app, commands, arguments)

    def _refuse(self, key: str, tables: Sequence[str], flags: Iterable[str]) -> NoReturn:
        from benchflow_engine.flags import FLAGS

        name = key.replace("-", "_")
        if tables and name in FLAGS:
            near = [FLAGS[name]]
        else:
            own = [flag.removeprefix("--").replace("-", "_") for flag in flags]
            near = get_close_matches(name, [*tables, *own], n=1)
        raise UsageError(
            f"{key}: unknown key" + (f"; did you mean {near[0]!r}?" if near else ""),
            where=str(self.path),
        )

    def _sources(self, prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Source]]:
        for key, value in table.items():
            name = f"{prefix}{key}"
            if isinstance(value, Mapping):
                yield from self._sources(f"{name}.", cast("Mapping[str, Any]", value))
            else:
                yield name, ("file", f"{self.path}:{name}")


class OriginRecorder:
    """Records where each option of the command comes from. It changes no argument."""

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Record the origin of every argument that has a value. Comes after all sources."""
        del app, commands
        found = dict(_SOURCES.get({}))
        for argument in arguments:
            if argument.tokens:
                found[argument.name] = _source(argument.name, argument.tokens[-1])
        _SOURCES.set(found)


def file_tables() -> Mapping[str, Any]:
    """Return the tables of a RunConfig in the file of this command."""
    return _TABLES.get({})


def sources() -> Mapping[str, Source]:
    """Return where the values of this command come from, by flag or by key of the file."""
    return _SOURCES.get({})


def _source(flag: str, token: Token) -> Source:
    match token.source:
        case "cli":
            return "flag", flag
        case "env":
            return "variable", f"${token.keyword}"
        case file:
            return "file", f"{file}:{flag.removeprefix('--')}"


Config = Env | ConfigFile | OriginRecorder

_READERS: dict[str, type[Toml] | type[Yaml]] = {".toml": Toml, ".yaml": Yaml, ".yml": Yaml}


def take_config(words: list[str]) -> tuple[list[str], list[Config]]:
    """Remove `--config FILE` from `words`; return the other words and the sources of options.

    An option on the command line overrides `BENCHFLOW_<OPTION>`, which overrides the file,
    which overrides the default. The file has the tables of a RunConfig, and the command's own
    options, with `-` or `_`. An unknown key is an error.

    Raises:
        UsageError: The file is missing, or is neither TOML nor YAML.
    """
    _TABLES.set({})
    _SOURCES.set({})
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
    try:
        data = reader(path, must_exist=True).config
    except Exception as error:
        raise UsageError(
            f"cannot read the options: {error}",
            where=str(path),
            hint="--print-config prints a file as --config reads it",
        ) from error
    return words[:at] + words[at + 2 :], [*sources, ConfigFile(path, data), OriginRecorder()]


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
