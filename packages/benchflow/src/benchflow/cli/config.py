"""Where flags come from besides the command line: the environment, then a file."""

from pathlib import Path

from benchflow_contracts import UsageError
from cyclopts.config import Env, Toml, Yaml

Config = Env | Toml | Yaml

_READERS: dict[str, type[Toml] | type[Yaml]] = {".toml": Toml, ".yaml": Yaml, ".yml": Yaml}


def take_config(words: list[str]) -> tuple[list[str], list[Config]]:
    """Take `--config FILE` out of `words` and return what is left, and the sources.

    A flag wins over `BENCHFLOW_<FLAG>`, that over the file, that over the default. A
    key of the file is a flag's name with `-` or `_`; an unknown one is an error.

    Raises:
        UsageError: The file is missing or is neither TOML nor YAML.
    """
    sources: list[Config] = [Env("BENCHFLOW_", command=False, show=False)]
    if "--config" not in words:
        return words, sources
    at = words.index("--config")
    if at + 1 == len(words):
        raise UsageError("--config needs a file", hint="for example --config job.toml")
    path = Path(words[at + 1])
    reader = _READERS.get(path.suffix)
    if reader is None or not path.is_file():
        raise UsageError(
            f"--config {str(path)!r} is no TOML or YAML file",
            hint="give a file that ends in .toml, .yaml or .yml",
        )
    file = reader(path, use_commands_as_keys=False, must_exist=True)
    return words[:at] + words[at + 2 :], [*sources, file]
