"""The command line's client: one request, its JSON on standard output."""

import http.client
import json
from argparse import Namespace
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from .errors import UsageError
from .operation import Operation, Request

TIMEOUT_SECONDS = 30.0


def build_request(operation: Operation, values: dict[str, Any]) -> Request:
    """Return the request that carries the arguments of an operation."""
    left = {name: value for name, value in values.items() if value is not None}
    path = operation.path
    for name in operation.path_names:
        path = path.replace(f"{{{name}}}", quote(str(left.pop(name)), safe=""))
    if operation.method in {"GET", "DELETE"}:
        query = urlencode(left, doseq=True)
        return Request(operation.method, f"{path}?{query}" if query else path)
    return Request(operation.method, path, left)


def request_from(operation: Operation, options: Namespace) -> Request:
    """Return the request that parsed options mean."""
    values = {each.name: getattr(options, f"field_{each.name}") for each in operation.fields}
    return build_request(operation, values)


def send_request(url: str, request: Request) -> tuple[int, str]:
    """Send one request; returns the status and the reply's text."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise UsageError(f"{url!r} is not an http:// address")
    body = json.dumps(request.body) if request.body else None
    headers = {"Content-Type": "application/json"} if body else {}
    connection = http.client.HTTPConnection(
        parts.hostname, parts.port or 80, timeout=TIMEOUT_SECONDS
    )
    try:
        connection.request(request.method, request.target, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise UsageError(f"no answer from {url}: {error}") from error
    finally:
        connection.close()
