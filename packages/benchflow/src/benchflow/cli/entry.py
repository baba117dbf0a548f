"""The entry point: global options, one command, one exit code."""

import asyncio
import atexit
import gc
import json as jsonlib
import math
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING, cast

from .commands import GROUPS, ROOT, find_command, overview, with_default

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
    """Run `bench` and exit. SIGTERM, SIGHUP and SIGINT tear everything down first."""
    # A background job of a script starts with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # asyncio turns SIGINT into a cancellation. An exception in the middle of the event loop
    # would end the teardown early.
    for number in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` ignores SIGHUP.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda _signal, _frame: signal.raise_signal(signal.SIGINT))
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 shows a question mark for other characters.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    # Garbage collections during imports took a sixth of the time and freed no memory.
    gc.set_threshold(200_000)
    code = run(sys.argv[1:] if argv is None else argv)
    if "pyqwest" in sys.modules:
        _exit_at_once(code)
    # Skip the last collection of the interpreter. DuckDB reports each object that is then left.
    if "duckdb" not in sys.modules:
        gc.freeze()
    sys.exit(code)


def _exit_at_once(code: int) -> None:
    """Exit without the end of the interpreter, unless the output cannot be written.

    A thread of E2B's SDK (pyqwest) that calls Python during that end aborts the process: 5 of 140
    runs ended with SIGABRT instead of their exit code.
    """
    atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors are printed, not raised."""
    words = [word for word in argv if word not in {"--debug", "--no-color"}]
    if argv[:1] == ["--complete"]:
        words = list(argv)
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
        return _report(error, _help_hint(with_default(words)), json="--json" in argv)


def _dispatch(words: list[str]) -> int:
    if words[0] in {"--install-completion", "--show-completion", "--complete"}:
        from .completion import run_completion

        return run_completion(words)
    from .config import lengthen, take_config

    words, config = take_config(lengthen(with_default(words)))
    _check_known(words)
    app = parser(words[0], config)
    if {"--help", "-h"} & set(words) or (words == [words[0]] and words[0] in GROUPS):
        from .help import print_help

        print_help(app, words)
        return 0
    _check_used(words)
    result = app(words, exit_on_error=False, print_error=False)
    return result if isinstance(result, int) else 0


def _check_known(words: list[str]) -> None:
    # Check before the parser does, because the parser imports every command for a suggestion.
    from difflib import get_close_matches

    from benchflow_contracts import UsageError

    levels = [[*ROOT, *GROUPS], list(GROUPS[words[0]].commands) if words[0] in GROUPS else []]
    for word, names in zip(words, levels, strict=False):
        if not names or word in names or word.startswith("-"):
            continue
        near = get_close_matches(word, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
        raise UsageError(f"{word!r} is not a command", hint=hint)


def _check_used(words: list[str]) -> None:
    """Refuse an option of rollouts that this command does not use."""
    from benchflow_contracts import UsageError

    from .panels import USED, is_option_of_rollouts

    command = " ".join(words[: 2 if words[0] in GROUPS else 1])
    if command not in USED:
        return
    for word in words:
        flag = word.partition("=")[0].partition(".")[0]
        if is_option_of_rollouts(flag) and flag not in USED[command]:
            raise UsageError(f"`bench {command}` does not use {flag}")


def parser(first: str, config: "Sequence[Config]" = ()) -> "App":
    """Return the parser of all commands, with the commands of the group `first`."""
    from cyclopts import App, Parameter

    app = App(
        name="bench",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        help_format="plaintext",
        default_parameter=Parameter(negative=(), validator=_check_number),
        config=config,
    )
    for name, command in ROOT.items():
        app.command(command.target, name=name, help=command.summary)
    for name, group in GROUPS.items():
        sub = App(name=name, help=group.summary)
        # Add only the commands of this group, because cyclopts imports each command that it has.
        for verb, command in group.commands.items() if name == first else ():
            sub.command(command.target, name=verb, help=command.summary)
        app.command(sub)
    return app


def _check_number(_kind: object, value: object) -> None:
    """Refuse NaN and infinity: a comparison with NaN is always false, so a limit would not hold."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("It is not a finite number")


def _help_hint(words: list[str]) -> str:
    """Return the hint that names the command's help."""
    levels = 0 if find_command(words) is None else 2 if words[0] in GROUPS else 1
    return f"see `{' '.join(['bench', *words[:levels]])} --help`"


def _report(error: Exception, see: str, *, json: bool) -> int:
    from benchflow_contracts import BenchFlowError, UsageError, host_error, host_is_short
    from cyclopts import CycloptsError, UnusedCliTokensError
    from pydantic import ValidationError

    if host_is_short(error):
        error = host_error("run the command", error)
    if isinstance(error, BenchFlowError):
        own = getattr(error, "exit_code", None)
        code = own if isinstance(own, int) else _EXIT_CODES.get(error.boundary, INFRASTRUCTURE)
        return _fail(
            str(error),
            see if error.hint == UsageError.default_hint else error.hint,
            code,
            json=json,
        )
    cause = error.__cause__ if isinstance(error, CycloptsError) else error
    if isinstance(cause, ValidationError) and cause.title.endswith(("Options", "Flags")):
        return _fail(_flag(cause), see, USAGE, json=json)
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
    message = f"{type(error).__name__}: {error}"
    hint = "run again with --debug and report the traceback"
    return _fail(message, hint, INFRASTRUCTURE, json=json)


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
    # The reader of the output has ended (`bench … | head`), so exit as a filter does.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    return 128 + signal.SIGPIPE
