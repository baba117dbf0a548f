"""What a model endpoint returns of its tokens."""

from typing import Final

import aiohttp
from benchflow_contracts import AgentError, Endpoint
from benchflow_contracts.gateway import TokenLevel

from .documents import Document, DocumentError, read_document
from .tokens import Tokens, ask_for_tokens
from .upstream import Upstream, error_message

_TIMEOUT_SEC: Final = 60.0
_MAX_BYTES: Final = 1024 * 1024


class ProbeError(AgentError):
    """The model endpoint did not answer the request for one token."""

    default_hint = "start the model server, or correct its URL and the name of the model"


class _RequestRefusedError(ProbeError):
    """The endpoint refused the request as malformed."""


async def probe_tokens(endpoint: Endpoint, model: str) -> TokenLevel:
    """Ask a chat endpoint for one token, and return what its answer says of tokens.

    Raises:
        ProbeError: The endpoint cannot be reached, or refused the request.
    """
    upstream = Upstream(endpoint, "vllm", model)
    question = {"role": "user", "content": "Say one word."}
    request: Document = {"model": model, "messages": [question], "max_tokens": 1}
    try:
        answer = await _ask(upstream, ask_for_tokens(request))
    except _RequestRefusedError:
        # Some servers refuse fields that they do not know.
        await _ask(upstream, request)
        return "text"
    found = Tokens.of(answer)
    if not found.prompt or not found.completion:
        return "text"
    return "tokens+logprobs" if len(found.logprobs or ()) == len(found.completion) else "tokens"


async def _ask(upstream: Upstream, request: Document) -> Document:
    url, headers = upstream.url("/chat/completions"), upstream.headers({}, None)
    shown = url.with_query(None).with_user(None)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SEC)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, json=request, headers=headers, allow_redirects=False) as answer,
        ):
            body = await _read(answer)
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise ProbeError(f"{shown} did not answer ({type(error).__name__})") from error
    if answer.status != 200:
        message = upstream.redact(error_message(body))
        refused = answer.status in (400, 422)
        raise (_RequestRefusedError if refused else ProbeError)(
            f"{shown} answered {answer.status}: {message:.300}"
        )
    return body


async def _read(answer: aiohttp.ClientResponse) -> Document:
    data = b""
    while len(data) < _MAX_BYTES and (more := await answer.content.read(_MAX_BYTES)):
        data += more
    try:
        return read_document(data)
    except DocumentError:
        return {}
