"""`--help` of a command: its arguments and options in panels, then examples."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import Parameter, getdoc
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Literal, Union, get_args, get_origin

from .commands import GROUPS, Command, find_command
from .config import SHORT, SHORT_COMMANDS
from .format import wrap
from .panels import COMMAND_PANEL, PANELS, is_used

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import Argument

_NAMES = 26
"""The width of the column of names. The text of a longer name begins on the next line."""
_NARROW = 60
"""The width of a terminal below which every text begins on the next line."""
_WIDEST = 100


@dataclass(frozen=True, slots=True)
class Option:
    """One argument or option of a command, as the help shows it."""

    names: tuple[str, ...]
    """The metavariable of an argument, or the long and short names of an option."""
    value: str
    """The metavariable of the value; empty for a switch."""
    text: str
    """A noun phrase, with the default."""
    choices: tuple[str, ...] = ()
    is_argument: bool = False
    is_required: bool = False

    @property
    def label(self) -> str:
        """The names and the metavariable, as the user types them."""
        if self.is_argument:
            return self.names[0]
        joint = "" if self.value.startswith((".", "=")) else " "
        return f"{', '.join(sorted(self.names, key=len))}{joint}{self.value}".rstrip()


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """The help of one command."""

    words: tuple[str, ...]
    summary: str
    details: tuple[str, ...]
    """Paragraphs."""
    panels: dict[str, list[Option]] = field(default_factory=dict[str, list[Option]])
    examples: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """The command line, with its arguments and its required options."""
        options = [option for panel in self.panels.values() for option in panel]
        arguments = [
            option.names[0] if option.is_required else f"[{option.names[0]}]"
            for option in options
            if option.is_argument
        ]
        required = [
            f"{option.names[0]} {option.value}"
            for option in options
            if option.is_required and not option.is_argument
        ]
        return " ".join(("bench", *self.words, *arguments, *required, "[OPTIONS]"))


def command_help(app: "App", words: Sequence[str]) -> CommandHelp:
    """Return the help of the command that `words` name."""
    command = find_command(words)
    assert command is not None, words
    sub = app
    for word in words:
        sub = sub[word]
    _describe_flags()
    panels: dict[str, list[Option]] = {name: [] for name in ("Arguments", COMMAND_PANEL, *PANELS)}
    homes = {flag: panel for panel, flags in PANELS.items() for flag in flags}
    for argument in sub.assemble_argument_collection(parse_docstring=True):
        shown = _option(argument, " ".join(words))
        if shown is not None:
            own = "Arguments" if shown.is_argument else COMMAND_PANEL
            panels[homes.get(shown.names[0], own)].append(shown)
    order = {
        flag: at for at, flag in enumerate(flag for flags in PANELS.values() for flag in flags)
    }
    for options in panels.values():
        options.sort(key=lambda option: order.get(option.names[0], -1))
    first, *details = _paragraphs(command)
    return CommandHelp(
        words=tuple(words),
        summary=first,
        details=tuple(details),
        panels={name: options for name, options in panels.items() if options},
        examples=tuple(command.examples()),
    )


@cache
def _describe_flags() -> None:
    """Give each flag of a rollout its help: the text below the field that declares the flag.

    Pydantic can do so when it makes a model. Every command would then parse the sources.
    """
    from benchflow_engine.flags import FLAGS, RunFlags, declaration
    from docstring_parser import parse_from_object

    texts: dict[type, dict[str, str | None]] = {}
    for name in FLAGS:
        model, field = declaration(name)
        if model not in texts:
            params = parse_from_object(model).params
            texts[model] = {param.arg_name: param.description for param in params}
        flag = RunFlags.model_fields[name]
        flag.description = flag.description or texts[model].get(field)


def _paragraphs(command: Command) -> list[str]:
    """Return the prose of a command's docstring."""
    text = getdoc(command.load()) or command.summary
    prose = text.partition("\n\nExamples:")[0].partition("\n\nArgs:")[0]
    return [" ".join(part.split()) for part in prose.split("\n\n")]


def _option(argument: "Argument", command: str) -> Option | None:
    """Return an argument as the help shows it, or `None` if the command does not use it."""
    is_argument = argument.index is not None
    long = argument.names[0]
    if long == "*" or not (is_argument or is_used(command, long)):
        return None
    names = [name for name in argument.names if name not in argument.negatives]
    if is_argument:
        names = [long.removeprefix("--").upper().replace("-", "_")]
    elif command in SHORT_COMMANDS:
        names += [short for short, name in SHORT.items() if name == long]
    choices = _choices(argument.hint)
    default = argument.field_info.default
    return Option(
        names=tuple(names),
        value=_value(argument.hint, choices, default),
        text=_text(argument, default, choices),
        choices=choices,
        is_argument=is_argument,
        is_required=argument.required,
    )


def _text(argument: "Argument", default: object, choices: tuple[str, ...]) -> str:
    """Return the help text with the default in its first sentence."""
    text = " ".join((argument.parameter.help or "").split())
    shown = "on" if default is True else str(default)
    # A parameter of several values has none by default.
    is_empty = default is Parameter.empty or default in ((), {}, "")
    is_set = default is not None and default is not False and not is_empty
    if is_set and not argument.required and "(default:" not in text:
        first, dot, more = text.partition(". ")
        text = f"{first.removesuffix('.')} (default: {shown}).{dot[1:]}{more}"
    return f"{text} One of {', '.join(choices)}." if choices else text


def _value(hint: object, choices: tuple[str, ...], default: object) -> str:
    if choices:
        return "CHOICE"
    if hint is bool:
        return "=false" if default is True else ""
    if get_origin(hint) is dict:
        return ".NAME VALUE"
    kinds: dict[object, str] = {int: "N", float: "NUMBER", Path: "PATH"}
    return next((kinds[kind] for kind in _alternatives(hint) if kind in kinds), "TEXT")


def _choices(hint: object) -> tuple[str, ...]:
    """Return the words that a value may have."""
    literals = [get_args(kind) for kind in _alternatives(hint) if get_origin(kind) is Literal]
    return tuple(str(word) for words in literals for word in words)


def _alternatives(hint: object) -> Iterator[object]:
    origin = get_origin(hint)
    if origin in (Union, UnionType) or origin is tuple:
        for part in get_args(hint):
            yield from _alternatives(part)
    elif hint is not type(None) and hint is not Ellipsis:
        yield hint


def help_lines(shown: CommandHelp, width: int) -> Iterator[str]:
    """Yield the lines of a command's help for a terminal of `width` columns."""
    yield from wrap(f"Usage: {shown.usage}", width, indent=7)
    for paragraph in (shown.summary, *shown.details):
        yield ""
        yield from wrap(paragraph, width)
    for name, options in shown.panels.items():
        yield ""
        yield f"{name}:"
        for option in options:
            yield from _option_lines(option, width)
    if shown.examples:
        yield ""
        yield "Examples:"
        yield from (f"    {example}" for example in shown.examples)


def _option_lines(option: Option, width: int) -> Iterator[str]:
    label = f"  {option.label}"
    if width >= _NARROW and len(label) <= _NAMES:
        yield from wrap(option.text, width, head=f"{label:<{_NAMES}}  ", indent=_NAMES + 2)
        return
    yield label
    indent = _NAMES + 2 if width >= _NARROW else 6
    yield from wrap(option.text, width, head=" " * indent, indent=indent)


def print_help(app: "App", words: Sequence[str]) -> None:
    """Print the help of a command or of a group of commands."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    named = words[: 2 if words[0] in GROUPS else 1]
    if find_command(named) is not None:
        lines = list(help_lines(command_help(app, named), width))
    else:
        group = GROUPS[named[0]]
        lines = [f"Usage: bench {named[0]} COMMAND [OPTIONS]", "", group.summary, "", "Commands:"]
        for name, command in group.commands.items():
            lines += wrap(command.summary, width, head=f"  {name:<8}  ", indent=12)
        lines += ["", f"`bench {named[0]} COMMAND --help` describes a command."]
    sys.stdout.write("\n".join(lines) + "\n")
