"""The HTTP server of the chat endpoint, on loopback."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from benchflow_gateway.documents import Document, DocumentError, read_document
from benchflow_gateway.errors import RefusedError
from benchflow_gateway.wires import CHAT

from .chat import ChatRequest, ChatRequestError, completion_of, message_of
from .conversations import Conversations, PromptRenderer
from .engines import Engine, EngineKind, Sampled, engine_of

_MAX_BODY = 64 * 1024 * 1024
_CONNECT_SEC = 10.0


class RenderingEndpoint:
    """Answers chat requests with tokens of an engine. Each answer has its token ids."""

    def __init__(
        self,
        renderer: PromptRenderer,
        engine: Engine,
        *,
        context_tokens: int | None = None,
    ) -> None:
        """Prepare the endpoint. A prompt of `context_tokens` or more tokens is refused."""
        self.conversations = Conversations(renderer)
        self.missing_logprobs = 0
        """The number of answers whose tokens cannot be trained on."""
        self._renderer = renderer
        self._engine = engine
        self._context_tokens = context_tokens

    async def complete(self, request: ChatRequest) -> tuple[Document, Sampled]:
        """Return the completion of a request.

        Raises:
            ChatRequestError: The messages cannot be rendered.
            RefusedError: The prompt is too long, or the engine failed.
        """
        try:
            prompt, origin = await asyncio.to_thread(self.conversations.prompt, request)
        except RefusedError:
            raise
        except Exception as error:
            raise ChatRequestError(f"messages: they cannot be rendered: {error}") from error
        if self._context_tokens is not None and len(prompt) >= self._context_tokens:
            raise RefusedError(
                "invalid",
                400,
                f"the prompt has {len(prompt)} tokens; the maximum context length is"
                f" {self._context_tokens}",
            )
        stop = self._renderer.get_stop_token_ids()
        sampled = await self._engine.sample(prompt, request.sampling, stop, request.model)
        self.missing_logprobs += sampled.logprobs is None
        parsed = self._renderer.parse_response(
            list(sampled.token_ids), prompt_ids=list(prompt), tools=request.tools or None
        )
        message = message_of(parsed)
        self.conversations.add(request, message, prompt, sampled.token_ids)
        body = completion_of(request, prompt, sampled, message)
        return {**body, "benchflow": {"prompt": origin}}, sampled

    def status(self) -> Document:
        """Return counts: prompts by origin, and answers without log-probabilities."""
        origins = dict(self.conversations.origins)
        breaks = origins.get("refused", 0) + origins.get("unknown", 0)
        return {"prompts": origins, "breaks": breaks, "missing_logprobs": self.missing_logprobs}

    def app(self) -> web.Application:
        """Return the application: `/v1/chat/completions`, `/v1/models`, `/status`."""
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_get("/v1/models", _models)
        app.router.add_get("/status", self._status)
        return app

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self.status())

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        try:
            body = read_document(await http.text())
            request = ChatRequest.of(body)
            completion, sampled = await self.complete(request)
        except (DocumentError, UnicodeDecodeError, ChatRequestError) as error:
            return web.json_response(CHAT.refusal("invalid", str(error)), status=400)
        except RefusedError as refused:
            refusal = CHAT.refusal(refused.kind, refused.message)
            return web.json_response(refusal, status=refused.status)
        headers = {} if sampled.version is None else {"x-policy-version": sampled.version}
        if not request.is_stream:
            return web.json_response(completion, headers=headers)
        return await _stream(http, completion, headers)


async def _stream(
    http: web.Request, completion: Document, headers: dict[str, str]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
    await response.prepare(http)
    await response.write(b"".join(event.encode() for event in CHAT.explode(completion)))
    await response.write_eof()
    return response


async def _models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": []})


@asynccontextmanager
async def serve_rendering(
    renderer: PromptRenderer,
    kind: EngineKind,
    url: str,
    *,
    api_key: str | None = None,
    port: int = 0,
    context_tokens: int | None = None,
    sampling_mask: bool = False,
) -> AsyncGenerator[tuple[RenderingEndpoint, str]]:
    """Serve the endpoint on loopback, and yield it with its base URL.

    Raises:
        UsageError: As `engine_of`.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SEC)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        engine = engine_of(kind, url, session, api_key, sampling_mask=sampling_mask)
        endpoint = RenderingEndpoint(renderer, engine, context_tokens=context_tokens)
        runner = web.AppRunner(endpoint.app(), access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", port)
            await site.start()
            yield endpoint, f"http://127.0.0.1:{_port(runner.addresses)}/v1"
        finally:
            await runner.cleanup()


def _port(addresses: Sequence[Any]) -> int:
    return int(addresses[0][1])
