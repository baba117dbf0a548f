"""Asking a model endpoint whether it is there."""

import asyncio
import http.client
import ssl
import threading
from urllib.parse import SplitResult, urlsplit

from benchflow_contracts import ModelEndpoint, ModelEndpointError

_ANSWER_SEC = 3.0


async def reach(endpoint: ModelEndpoint) -> None:
    """Ask the model endpoint for anything at all, once; any HTTP answer will do.

    The request lists models and holds no key, so that it costs nothing: who answers 401 or 404
    is there.

    Raises:
        ModelEndpointError: There was no answer within 3 s. The message names the URL.
    """
    url = urlsplit(endpoint.upstream)
    shown = url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()
    asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # A thread of its own: a resolver that hangs must not hold up the end of the process.
    threading.Thread(target=_ask, args=(url, asked), daemon=True).start()
    try:
        async with asyncio.timeout(_ANSWER_SEC):
            await asked
    except TimeoutError as error:
        raise ModelEndpointError(
            f"the model endpoint {shown} did not answer within {_ANSWER_SEC:g} s"
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ModelEndpointError(
            f"the model endpoint {shown} cannot be reached: {error or type(error).__name__}"
        ) from error


def _ask(url: SplitResult, asked: asyncio.Future[None]) -> None:
    loop, failure = asked.get_loop(), None
    try:
        _request(url)
    except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
        failure = error

    def tell() -> None:
        if asked.done():
            return
        if failure is None:
            asked.set_result(None)
        else:
            asked.set_exception(failure)

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        return  # Nobody waits any more.


def _request(url: SplitResult) -> None:
    host = url.hostname or ""
    if url.scheme == "https":
        context = ssl.create_default_context()
        link: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, url.port, timeout=_ANSWER_SEC, context=context
        )
    else:
        link = http.client.HTTPConnection(host, url.port, timeout=_ANSWER_SEC)
    try:
        link.request("GET", f"{url.path.rstrip('/')}/models", headers={"Connection": "close"})
        link.getresponse()
    finally:
        link.close()
