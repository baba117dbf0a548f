"""The way in of the `claw-*` commands: a world's start goes past the parser of all commands."""

import sys

from .errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .front import Attend
    from .operation import Service


def main(name: str) -> int:
    """Run one command; 2 is a mistake in its use."""
    run = _usual(name, sys.argv[1:])
    if run is None:
        from .command import main as parse  # noqa: PLC0415 - slow to import

        return parse(_service(name))
    try:
        return run()
    except UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


def _usual(name: str, words: list[str]) -> "Callable[[], int] | None":
    """Return the command of words as a manifest and a task say them.

    Any other way to say it is left to the parser of all commands.
    """
    match words:
        case ["--db", database, "serve", "--host", host, "--port", port, *rest]:
            usual = port.isascii() and port.isdecimal() and rest in ([], ["--no-mcp"])
            if usual and _plain(database, host):
                return lambda: _serve(name, database, host, int(port[:9]), mcp=not rest)
        case ["--db", database, "seed", file] if _plain(database, file):
            return lambda: _seed(name, database, file)
    return None


def _plain(*words: str) -> bool:
    return all(word and not word.startswith("-") for word in words)


def _serve(name: str, database: str, host: str, port: int, *, mcp: bool) -> int:
    from .front import Front  # noqa: PLC0415 - for servers only

    def load() -> "Attend":
        from .web import Web  # noqa: PLC0415 - slow to import

        return Web(_service(name), database, mcp=mcp).attend

    return Front(name, database, load).serve(_tables(name), host, port)


def _seed(name: str, database: str, file: str) -> int:
    from pathlib import Path  # noqa: PLC0415 - a server needs no path

    from .store import seed_database  # noqa: PLC0415 - a server needs no seed

    seed_database(_service(name), Path(database), Path(file))
    return 0


def _service(name: str) -> "Service":
    if name == "claw-gmail":
        from .mail_service import MAIL  # noqa: PLC0415

        return MAIL
    from .calendar_service import CALENDAR  # noqa: PLC0415

    return CALENDAR


def _tables(name: str) -> str:
    if name == "claw-gmail":
        from .mail_tables import MAIL_TABLES  # noqa: PLC0415

        return MAIL_TABLES
    from .calendar_tables import CALENDAR_TABLES  # noqa: PLC0415

    return CALENDAR_TABLES
