"""Shell completion: the scripts of bash, zsh and fish, and the words that they offer."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from .commands import GROUPS, ROOT, find_command, with_default

if TYPE_CHECKING:
    from .help import Option

_BASH = """\
_bench_completion() {
    local IFS=$'\\n'
    COMPREPLY=($(bench --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]]; then
        compopt -o nospace
    fi
}
complete -F _bench_completion bench
"""
_ZSH = """\
#compdef bench
_bench_completion() {
    local -a found
    found=("${(@f)$(bench --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -S '' -- ${(M)found:#*/}
    compadd -- ${found:#*/}
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _bench_completion bench
"""
_FISH = """\
function __bench_completion
    set -l words (commandline -opc)
    bench --complete $words[2..] (commandline -ct) 2>/dev/null
end
complete -c bench -f -a '(__bench_completion)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

_REGISTRY = {
    "--agent": "benchflow.agents",
    "--protocol": "benchflow.task_servers",
    "--sandbox": "benchflow.sandboxes",
    "--export": "benchflow.exporters",
    "--format": "benchflow.exporters",
    "AGENT": "benchflow.agents",
}
_JOBS = {"JOB", "--job-name"}
_ROLLOUTS = {"ROLLOUT", "A", "B"}
_TASK_NAMES = {"--include", "--exclude"}
_NO_PATHS = {"NODE"}
_GLOBAL = ("--config", "--debug", "--help", "--json", "--no-color")


def install(shell: str | None) -> list[Path]:
    """Install the completion for `shell`, by default the user's; return the changed files.

    Raises:
        UsageError: The shell is unknown.
        StoreError: A file cannot be written.
    """
    from benchflow_contracts import StoreError

    name = known_shell(shell)
    home = Path.home()
    if name == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        script, startup = config / "fish" / "completions" / "bench.fish", None
    else:
        data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
        script, startup = data / "benchflow" / f"completion.{name}", home / f".{name}rc"
        if name == "zsh":
            startup = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPTS[name], encoding="utf-8")
        return [script, *([startup] if startup and _add_line(startup, f'. "{script}"') else [])]
    except OSError as error:
        raise StoreError(
            f"cannot write {error.filename!r}: {error.strerror}",
            hint=f"write the output of `bench --show-completion {name}` yourself",
        ) from error


def _add_line(file: Path, line: str) -> bool:
    """Append `line` unless the file has it; return whether the file changed."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if line in text.splitlines():
        return False
    with file.open("a", encoding="utf-8") as stream:
        stream.write(("" if text.endswith("\n") or not text else "\n") + line + "\n")
    return True


def known_shell(shell: str | None) -> str:
    """Return the name of a shell with a script, by default of the user's shell.

    Raises:
        UsageError: The shell is not supported.
    """
    from benchflow_contracts import UsageError

    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SCRIPTS:
        raise UsageError(
            f"shell {name!r} is not supported", hint=f"name one of {', '.join(SCRIPTS)}"
        )
    return name


def completions(words: Sequence[str]) -> list[str]:
    """Return the words that can replace the last of `words`, the words after `bench`."""
    # bash splits `--agent=oracle` into three words.
    words = [word for word in words[:-1] if word != "="] + [words[-1].removeprefix("=")]
    *before, prefix = words
    return sorted({word for word in _candidates(before, prefix) if _fits(word, prefix)})


def _fits(word: str, prefix: str) -> bool:
    return word.startswith(prefix) and word.isprintable()


def _candidates(before: list[str], prefix: str) -> Iterable[str]:
    if not before:
        return (*ROOT, *GROUPS, "--help", "--version", "--install-completion", "--show-completion")
    if before[0] in GROUPS and len(before) == 1:
        group = GROUPS[before[0]]
        more = () if group.default is None else _in_command([*before, group.default], prefix)
        return (*group.commands, *more, "--help")
    before = with_default(before)
    if find_command(before) is None:
        return SCRIPTS if before[-1].endswith("-completion") else ()
    return _in_command(before, prefix)


def _in_command(before: list[str], prefix: str) -> Iterable[str]:
    from .entry import parser
    from .help import command_help

    size = 2 if before[0] in GROUPS else 1
    shown = command_help(parser(before[0]), before[:size])
    options = [option for panel in shown.panels.values() for option in panel]
    flags = {name: option for option in options for name in option.names}
    last = flags.get(before[-1]) if len(before) > size else None
    if last is not None and _takes_value(last):
        return last.choices or _values(last.names[0], last.value, before, prefix)
    if prefix.startswith("-"):
        return [*(name for name in flags if name.startswith("-")), *_GLOBAL]
    arguments = [option for option in options if option.is_argument]
    at = sum(1 for _ in _positional(before[size:], flags))
    if at >= len(arguments):
        return ()
    return arguments[at].choices or _values(arguments[at].names[0], "PATH", before, prefix)


def _takes_value(option: "Option") -> bool:
    return bool(option.value) and not option.is_argument and option.value != "=false"


def _positional(words: Sequence[str], flags: "dict[str, Option]") -> Iterator[str]:
    """Yield the words that are neither options nor their values."""
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word.startswith("-"):
            is_value = word in flags and _takes_value(flags[word])
        else:
            yield word


def _values(name: str, kind: str, before: Sequence[str], prefix: str) -> Iterable[str]:
    """Return the known values of an option or an argument, by its name."""
    if name in _REGISTRY:
        from benchflow_kernel import Registry

        return Registry().names(_REGISTRY[name])
    jobs = Path(_value_of(before, "--jobs-dir") or os.environ.get("BENCHFLOW_JOBS_DIR") or "jobs")
    if name in _JOBS:
        return {
            file.parent.name for kind in ("job", "summary") for file in jobs.glob(f"*/{kind}.json")
        }
    if name in _ROLLOUTS:
        return [
            file.parent.name
            for depth in ("*", "*/*")
            for file in jobs.glob(f"{depth}/events.jsonl")
        ]
    if name in _TASK_NAMES:
        tasks = Path(_value_of(before, "--tasks-dir", "-p") or ".")
        return [file.parent.name for file in tasks.glob("*/task.toml")]
    is_path = kind == "PATH" or name in {"--tasks-dir", "TASK", "PATH", "SOURCE"}
    return _paths(prefix) if is_path and name not in _NO_PATHS else ()


def _value_of(words: Sequence[str], *names: str) -> str | None:
    return next((value for name, value in pairwise(words) if name in names), None)


def _paths(prefix: str) -> Iterator[str]:
    """Yield the paths that begin with `prefix`; a directory ends in `/`, unless it is a task."""
    head = prefix.rpartition("/")[0]
    directory = Path(f"{head}/" if prefix.startswith("/") or head else ".").expanduser()
    start = prefix[: len(prefix) - len(prefix.rpartition("/")[2])]
    try:
        entries = list(directory.iterdir())
    except OSError:
        return
    for entry in entries:
        is_hidden = entry.name.startswith(".") and not prefix.rpartition("/")[2].startswith(".")
        if not is_hidden:
            is_open = entry.is_dir() and not (entry / "task.toml").is_file()
            yield f"{start}{entry.name}{'/' if is_open else ''}"


def run_completion(words: Sequence[str]) -> int:
    """Run `--install-completion`, `--show-completion` or `--complete`; return the exit code."""
    first, *rest = words
    if first == "--complete":
        sys.stdout.write("".join(f"{word}\n" for word in completions(rest or [""])))
    elif first == "--show-completion":
        sys.stdout.write(SCRIPTS[known_shell(rest[0] if rest else None)])
    else:
        for file in install(rest[0] if rest else None):
            sys.stdout.write(f"wrote {file}\n")
        sys.stdout.write("start a new shell to use the completion\n")
    return 0
