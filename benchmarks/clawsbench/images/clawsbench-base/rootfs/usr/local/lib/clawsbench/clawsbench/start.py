"""The way in of the `claw-*` commands: straight to the listener when that is all it takes."""

import sys

from .errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .front import Attend
    from .operation import Service


def main(name: str) -> int:
    """Run one command; 2 is a mistake in its use."""
    wanted = _usual(sys.argv[1:])
    if wanted is None:
        from .command import main as run  # noqa: PLC0415 - slow to import

        return run(_service(name))
    from .front import Front  # noqa: PLC0415 - for servers only

    database, host, port, mcp = wanted

    def load() -> "Attend":
        from .web import Web  # noqa: PLC0415 - slow to import

        return Web(_service(name), database, mcp=mcp).attend

    try:
        return Front(name, database, load).serve(_tables(name), host, port)
    except UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


def _usual(words: list[str]) -> tuple[str, str, int, bool] | None:
    """Read `--db PATH serve --host HOST --port PORT [--no-mcp]`, as a manifest says it.

    Any other way to say it is left to the parser of all commands.
    """
    match words:
        case ["--db", database, "serve", "--host", host, "--port", port, *rest]:
            plain = all(word and not word.startswith("-") for word in (database, host))
            if plain and port.isascii() and port.isdecimal() and rest in ([], ["--no-mcp"]):
                return database, host, int(port[:9]), not rest
    return None


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
