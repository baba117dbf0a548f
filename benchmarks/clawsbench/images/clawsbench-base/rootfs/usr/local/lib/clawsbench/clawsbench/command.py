"""The `claw-*` commands: serve a world, seed it, and act in it."""

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UsageError
from .kinds import Integer, ListOf
from .operation import Field, Operation, Request, Service
from .store import seed_database

if TYPE_CHECKING:
    from .front import Attend


def serve(service: Service, options: Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from .front import Front  # noqa: PLC0415 - a client call does not need it

    database = str(_database(options))

    def load() -> "Attend":
        from .web import Web  # noqa: PLC0415 - see front

        return Web(service, database, mcp=not options.no_mcp).attend

    return Front(service.name, database, load).serve(service.tables, options.host, options.port)


def seed(service: Service, options: Namespace) -> int:
    """Fill an empty world; the same seed again is no change, another one an error."""
    seed_database(service, _database(options), options.file)
    return 0


def _database(options: Namespace) -> Path:
    if options.db is None:
        raise UsageError("name the database: --db PATH")
    path: Path = options.db
    return path


def act(request: Request, options: Namespace) -> int:
    """Send one request; the exit code is 0 for success and 1 for a refusal."""
    from .client import send_request  # noqa: PLC0415 - only a client loads HTTP

    status, text = send_request(options.url, request)
    sys.stdout.write(text)
    return 0 if status < 400 else 1


def call(options: Namespace) -> int:
    """Send a request given by method, path and JSON body."""
    try:
        body = json.loads(options.body) if options.body else {}
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from error
    return act(Request(options.method.upper(), options.path, body), options)


def _add_field(parser: ArgumentParser, each: Field, *, positional: bool) -> None:
    settings: dict[str, Any] = {"help": each.help, "metavar": each.name.upper()}
    if isinstance(each.kind, Integer):
        settings["type"] = int
    if isinstance(each.kind, ListOf):
        settings["action"] = "append"
        settings["help"] += "; may be repeated"
    if positional:
        parser.add_argument(f"field_{each.name}", **settings)
        return
    flag = "--" + each.name.replace("_", "-")
    parser.add_argument(flag, dest=f"field_{each.name}", required=each.required, **settings)


def build_parser(service: Service) -> ArgumentParser:
    """Return the command line of a service: serve, seed, call, and every operation."""
    parser = ArgumentParser(prog=service.name, description=f"ClawsBench {service.title}")
    variable = service.name.upper().replace("-", "_") + "_URL"
    url = os.environ.get(variable, f"http://127.0.0.1:{service.port}")
    parser.add_argument("--db", type=Path, help="the database (serve and seed)")
    parser.add_argument("--url", default=url, help=f"the service to talk to (${variable})")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    server = commands.add_parser("serve", help="serve the database over HTTP")
    server.add_argument("--host", default="127.0.0.1")
    server.add_argument("--port", type=int, default=service.port, help="0 picks a free one")
    server.add_argument("--no-mcp", action="store_true", help="do not answer MCP at /mcp")
    server.set_defaults(run=lambda options: serve(service, options))
    seeder = commands.add_parser("seed", help="fill an empty database from a JSON file")
    seeder.add_argument("file", type=Path)
    seeder.set_defaults(run=lambda options: seed(service, options))
    caller = commands.add_parser("call", help="send any request: call GET /profile")
    caller.add_argument("method")
    caller.add_argument("path")
    caller.add_argument("body", nargs="?", help="a JSON object")
    caller.set_defaults(run=call)
    for operation in service.operations:
        _add_operation(commands.add_parser(operation.name, help=operation.summary), operation)
    return parser


def _add_operation(parser: ArgumentParser, operation: Operation) -> None:
    inside = operation.path_names
    for each in operation.fields:
        _add_field(parser, each, positional=each.name in inside)
    parser.set_defaults(run=lambda options: _operate(operation, options))


def _operate(operation: Operation, options: Namespace) -> int:
    from .client import request_from  # noqa: PLC0415 - only a client loads HTTP

    return act(request_from(operation, options), options)


def main(service: Service) -> int:
    """Run one command; 2 is a mistake in its use."""
    options = build_parser(service).parse_args()
    try:
        return int(options.run(options))
    except UsageError as error:
        print(f"{service.name}: {error}", file=sys.stderr)
        return 2
