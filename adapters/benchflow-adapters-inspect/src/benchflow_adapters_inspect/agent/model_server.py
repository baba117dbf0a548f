"""A host server that answers an agent's model calls by the Inspect model of its sample."""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false

import asyncio
import contextvars
import json
import secrets
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from inspect_ai.model import ChatMessage, Model, ModelOutput
from inspect_ai.util import LimitExceededError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from . import chat


class ModelServer:
    """Chat Completions over one Inspect model.

    Each call runs in the context of the sample, so Inspect records a model event, counts the
    tokens, and applies the sample's limits.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._context = contextvars.copy_context()
        self._token = secrets.token_urlsafe(24)
        self.url = ""
        self.messages: list[ChatMessage] = []
        """The messages of the latest answered call, with its answer."""
        self.output: ModelOutput | None = None
        self.failed = asyncio.Event()
        self.error: BaseException | None = None
        """The limit or the error of Inspect that ended the model's work."""

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        """Listen on loopback inside this block. The address cannot be guessed."""
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/{self._token}"
        path = f"/{self._token}/{{_:path}}"
        app = Starlette(routes=[Route(path, self._answer, methods=["POST"])])
        config = uvicorn.Config(app, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        # Inspect handles the signals of the process.
        server.capture_signals = _no_signals  # type: ignore[method-assign]
        # A group would wrap the error of the block, which Inspect reads by its type.
        task = asyncio.create_task(server.serve(sockets=[listener]))  # noqa: TID251
        try:
            yield
        finally:
            server.should_exit = True
            server.force_exit = True
            await task
            listener.close()

    async def _answer(self, request: Request) -> Response:
        body = await request.body()
        try:
            call = json.loads(body)
            work = asyncio.create_task(  # noqa: TID251 - awaited here
                self._generate(call), context=self._context.copy()
            )
            output = await work
        except (ValueError, RecursionError) as error:
            return _refusal(400, error)
        except (Exception, LimitExceededError) as error:  # noqa: BLE001 - the sample gets it
            self.error = error
            self.failed.set()
            return _refusal(503, error)
        completion = chat.completion_of(output)
        if not call.get("stream"):
            return JSONResponse(completion)
        lines = [f"data: {json.dumps(each)}\n\n" for each in chat.chunks_of(completion)]
        return Response("".join([*lines, "data: [DONE]\n\n"]), media_type="text/event-stream")

    async def _generate(self, call: object) -> ModelOutput:
        if not isinstance(call, dict):
            raise chat.ChatRequestError("the request is not an object")
        messages = chat.messages_of(call)
        output = await self._model.generate(
            messages,
            tools=chat.tools_of(call),
            tool_choice=chat.tool_choice_of(call),
            config=chat.config_of(call),
        )
        answered = [] if output.empty else [output.message]
        self.messages, self.output = [*messages, *answered], output
        return output


def _refusal(status: int, error: BaseException) -> Response:
    return JSONResponse({"error": {"message": str(error)[:2000]}}, status_code=status)


@contextmanager
def _no_signals() -> Generator[None]:
    yield
