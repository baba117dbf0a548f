"""The entry point: global options, one command, one exit code."""

import asyncio
import gc
import json as jsonlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, cast

from .commands import GROUPS, ROOT, find_command, overview

if TYPE_CHECKING:
    from cyclopts import App
    from pydantic import ValidationError

    from .config import Config

USAGE, CONFIG, INFRASTRUCTURE, INTERRUPTED = 2, 3, 4, 130

_EXIT_CODES = {
    "usage": USAGE,
    "task": CONFIG,
    "manifest": CONFIG,
    "reward": 1,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run `bench` and exit. SIGTERM ends it as an interrupt does: everything is torn down."""
    # A script's background job starts with SIGINT ignored, and then nothing would end it well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Through SIGINT, which asyncio turns into a cancellation; an exception raised in
    # the middle of the loop would cut the teardown short.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: signal.raise_signal(signal.SIGINT))
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 gets a question mark for what it cannot show.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    # What a command loads at its start is no garbage: to look for it was a sixth of its time.
    gc.set_threshold(200_000)
    code = run(sys.argv[1:] if argv is None else argv)
    # Nor is what is left: at its end the interpreter would look through all of it once more.
    gc.freeze()
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors are printed, not raised."""
    words = [word for word in argv if word not in {"--debug", "--no-color"}]
    if "--no-color" in argv:
        os.environ["NO_COLOR"] = "1"
    if not words or words[0] in {"--help", "-h", "help"}:
        sys.stdout.write(overview())
        return 0 if words else USAGE
    if words[0] == "--version":
        from importlib import metadata

        sys.stdout.write(metadata.version("benchflow") + "\n")
        return 0
    try:
        return _dispatch(words)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _fail("interrupted", None, INTERRUPTED, json="--json" in argv)
    except BrokenPipeError:
        return _closed_pipe()
    except Exception as error:  # noqa: BLE001 - the last boundary: every error is reported
        if "--debug" in argv:
            traceback.print_exc()
        return _report(error, _see(words), json="--json" in argv)


def _dispatch(words: list[str]) -> int:
    from .config import lengthen, take_config

    words, config = take_config(lengthen(words))
    _check_known(words)
    result = _app(words[0], config)(words, exit_on_error=False, print_error=False)
    if {"--help", "-h"} & set(words) and (command := find_command(words)) is not None:
        sys.stdout.write(command.examples())
    return result if isinstance(result, int) else 0


def _check_known(words: list[str]) -> None:
    # Before the parser, which would import every command to suggest one.
    from difflib import get_close_matches

    from benchflow_contracts import UsageError

    levels = [[*ROOT, *GROUPS], list(GROUPS[words[0]].commands) if words[0] in GROUPS else []]
    for asked, names in zip(words, levels, strict=False):
        if not names or asked in names or asked.startswith("-"):
            continue
        near = get_close_matches(asked, names, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
        raise UsageError(f"no command {asked!r}", hint=meant)


def _app(first: str, config: "Sequence[Config]") -> "App":
    from cyclopts import App, Parameter

    app = App(
        name="bench",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        help_format="plaintext",
        default_parameter=Parameter(negative=()),
        config=config,
    )
    for name, command in ROOT.items():
        app.command(command.target, name=name, help=command.summary)
    for name, group in GROUPS.items():
        sub = App(name=name, help=group.summary)
        # Only the group that is asked for: a command is imported to list its help.
        for verb, command in group.commands.items() if name == first else ():
            sub.command(command.target, name=verb, help=command.summary)
        app.command(sub)
    return app


def _see(words: list[str]) -> str:
    """Return where the flags of the command that was asked for are explained."""
    levels = 0 if find_command(words) is None else 2 if words[0] in GROUPS else 1
    return f"see `{' '.join(['bench', *words[:levels]])} --help`"


def _report(error: Exception, see: str, *, json: bool) -> int:
    from benchflow_contracts import BenchFlowError, UsageError, host_error, host_is_short
    from cyclopts import CycloptsError, UnusedCliTokensError
    from pydantic import ValidationError

    if host_is_short(error):
        error = host_error("run the command", error)
    if isinstance(error, BenchFlowError):
        code = _EXIT_CODES.get(error.boundary, INFRASTRUCTURE)
        return _fail(
            str(error),
            see if error.hint == UsageError.default_hint else error.hint,
            code,
            json=json,
        )
    wrong = error.__cause__ if isinstance(error, CycloptsError) else error
    if isinstance(wrong, ValidationError) and wrong.title.endswith("Options"):
        return _fail(_flag(wrong), see, USAGE, json=json)
    if isinstance(error, UnusedCliTokensError):
        return _fail(
            f"unexpected argument {(error.unused_tokens or [''])[0]!r}", see, USAGE, json=json
        )
    if isinstance(error, CycloptsError):
        return _fail(str(error).strip(), see, USAGE, json=json)
    if isinstance(error, BaseExceptionGroup):
        inner: BaseException = error
        while isinstance(inner, BaseExceptionGroup):
            inner = cast("BaseExceptionGroup[BaseException]", inner).exceptions[0]
        return _report(inner, see, json=json) if isinstance(inner, Exception) else INTERRUPTED
    what = f"{type(error).__name__}: {error}"
    return _fail(what, "run again with --debug and report the traceback", INFRASTRUCTURE, json=json)


def _flag(error: "ValidationError") -> str:
    first = error.errors()[0]
    flag = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else error.title
    return f"{flag} {first['input']!r}: {first['msg'].removeprefix('Value error, ')}"


def _fail(message: str, hint: str | None, code: int, *, json: bool) -> int:
    from .output import note

    if json:
        fields = {"error": message, "hint": hint, "exit_code": code}
        note(jsonlib.dumps(fields, ensure_ascii=False))
        return code
    note(f"error: {message}")
    if hint:
        note(f"hint: {hint}")
    return code


def _closed_pipe() -> int:
    # The reader of our output went away (`bench … | head`): end as a filter does.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    return 128 + signal.SIGPIPE
