"""One chat completion over an OpenAI-compatible endpoint, in a thread."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, HTTPMessage
from typing import IO, TypeVar

from benchflow_contracts import Endpoint, EnvironmentError_

from .simulated import Message

_MAX_REPLY_BYTES = 1024 * 1024

T = TypeVar("T")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the credential to another host."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        del req, fp, code, msg, headers, newurl


async def complete(
    endpoint: Endpoint,
    model: str,
    messages: list[Message],
    timeout: float,
    *,
    seed: int | None = None,
) -> str:
    """Return the content of the first choice. This takes at most about `timeout` seconds.

    Raises:
        EnvironmentError_: The endpoint is unreachable or slow, or its response is invalid.
    """
    body: dict[str, object] = {"model": model, "messages": messages}
    if seed is not None:
        body["seed"] = seed
    return await _call_in_daemon(lambda: _complete(endpoint, body, timeout))


def _complete(endpoint: Endpoint, question: dict[str, object], timeout: float) -> str:
    request = urllib.request.Request(  # noqa: S310 - the operator's own endpoint
        f"{endpoint.url.rstrip('/')}/chat/completions",
        data=json.dumps(question).encode(),
        headers={"content-type": "application/json", **endpoint.headers},
    )
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=timeout) as response:
            body = response.read(_MAX_REPLY_BYTES + 1)
        if len(body) > _MAX_REPLY_BYTES:
            raise _failed(f"its reply is larger than {_MAX_REPLY_BYTES} bytes")
        content = json.loads(body)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        error.close()
        raise _failed(str(error), retryable=error.code >= 429) from error
    except (OSError, HTTPException) as error:
        raise _failed(str(error), retryable=True) from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _failed(f"its reply is not a chat completion: {error!r}") from error
    if not isinstance(content, str):
        raise _failed("its reply has no text")
    return content


def _failed(problem: str, *, retryable: bool = False) -> EnvironmentError_:
    return EnvironmentError_(
        f"the simulated user's endpoint failed: {problem}",
        hint="check the address, the credential and the model of the simulated user",
        retryable=retryable,
    )


async def _call_in_daemon(work: Callable[[], T]) -> T:
    """Run `work` in a daemon thread and return its result.

    On cancellation the thread continues and its result is dropped: a blocking
    request cannot be interrupted, and must not delay the end of the process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed to the awaiting side
            failure = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=run, name="benchflow-user", daemon=True).start()
    return await future
