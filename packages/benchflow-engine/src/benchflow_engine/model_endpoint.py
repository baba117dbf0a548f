"""Checks that a model endpoint answers, and that it serves the agent's model route."""

import asyncio
import http.client
import ssl
import threading
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

from benchflow_contracts import AgentError, Endpoint

_ANSWER_SEC = 3.0
_ROUTES = {
    "openai-chat": "/chat/completions",
    "openai-responses": "/responses",
    "anthropic": "/messages",
}
"""The path of a model call, by the protocol of the agent or of the endpoint."""


class ModelEndpointError(AgentError):
    """The endpoint of an agent's model does not answer."""

    default_hint = "start the model server, or correct --base-url"


async def reach(endpoint: Endpoint, *, wire: str | None = None) -> None:
    """Ask the model endpoint for its list of models, once. Any HTTP response counts.

    If the endpoint has no such list (404), an empty request goes to the model route of `wire`.
    The check fails if that route is missing too. No request has a key, so the check costs
    nothing.

    Raises:
        ModelEndpointError: There was no response within 3 s, or the model route is missing. The
            message names the URL.
    """
    url = urlsplit(endpoint.url)
    shown = url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()
    asked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    # A separate thread: a resolver that hangs must not delay the end of the process.
    threading.Thread(target=_ask, args=(url, wire, asked), daemon=True).start()
    try:
        async with asyncio.timeout(_ANSWER_SEC):
            is_there = await asked
    except TimeoutError as error:
        raise ModelEndpointError(
            f"the model endpoint {shown} did not answer within {_ANSWER_SEC:g} s"
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ModelEndpointError(
            f"the model endpoint {shown} cannot be reached: {error or type(error).__name__}"
        ) from error
    if not is_there:
        raise ModelEndpointError(
            f"the model endpoint {shown} has no model route: {_ROUTES[wire or '']} gives 404",
            hint="check the path of --base-url, for example http://127.0.0.1:8000/v1",
        )


def _ask(url: SplitResult, wire: str | None, asked: asyncio.Future[bool]) -> None:
    loop, failure, is_there = asked.get_loop(), None, False
    try:
        is_there = _has_model_route(url, wire)
    except Exception as error:  # noqa: BLE001 - raised again by the task that waits
        failure = error

    def report() -> None:
        if asked.done():
            return
        if failure is None:
            asked.set_result(is_there)
        else:
            asked.set_exception(failure)

    try:
        loop.call_soon_threadsafe(report)
    except RuntimeError:
        return  # The event loop has ended.


def _has_model_route(url: SplitResult, wire: str | None) -> bool:
    base = url.path.rstrip("/")
    if _status(url, "GET", f"{base}/models") != HTTPStatus.NOT_FOUND or wire not in _ROUTES:
        return True
    # Clients and the gateway add a version to a base without one.
    paths = (f"{base}{_ROUTES[wire]}", f"{base}/v1{_ROUTES[wire]}")
    return any(_status(url, "POST", path) != HTTPStatus.NOT_FOUND for path in paths)


def _status(url: SplitResult, method: str, path: str) -> int:
    """Send a request without a key; return the status of the response."""
    host = url.hostname or ""
    if url.scheme == "https":
        context = ssl.create_default_context()
        link: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, url.port, timeout=_ANSWER_SEC, context=context
        )
    else:
        link = http.client.HTTPConnection(host, url.port, timeout=_ANSWER_SEC)
    headers = {"Connection": "close"}
    body = None
    if method == "POST":
        headers["Content-Type"] = "application/json"
        body = b"{}"
    try:
        link.request(method, path, body=body, headers=headers)
        return link.getresponse().status
    finally:
        link.close()
