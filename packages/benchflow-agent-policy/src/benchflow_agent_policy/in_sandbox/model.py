"""The model behind an OpenAI-compatible chat endpoint."""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .completion import BadReplyError, Completion, read_completion
from .errors import ContextFullError, HttpError, TurnFailedError
from .http_call import HttpCall
from .settings import Settings
from .token_chain import TokenChain
from .wire import Json, Wire, as_object

TOKEN_FIELD = "return_token_ids"  # noqa: S105 - not a password
"""vLLM's request field. Other endpoints ignore the field, or refuse it by name."""

_REPLY_BYTES = 64 * 1024 * 1024
_LONGEST_PAUSE = 30.0
_TEMPORARY = frozenset({408, 409, 425, 429})
_FULL = re.compile(
    r"context[_ ](length|window|size)|maximum context|prompt is too long|reduce the length", re.I
)


class _TemporaryError(Exception):
    """The call may succeed later, but not before `after` seconds."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


@dataclass(slots=True)
class ModelOptions:
    """The model options that a session may change."""

    model: str
    reasoning_effort: str = ""


class Model:
    """Calls the endpoint without streaming, each time on a new connection.

    Calls with temporary failures are repeated with growing pauses. So a turn survives a fork
    during a call, although the fork cuts the connection.
    """

    def __init__(self, wire: Wire, settings: Settings) -> None:
        self._wire = wire
        self._settings = settings
        self._wants_ids = True

    def complete(
        self,
        messages: Sequence[Json],
        tools: Sequence[Json],
        options: ModelOptions,
        chain: TokenChain,
    ) -> Completion:
        """Return the model's next message.

        Raises:
            ContextFullError: The messages no longer fit into the model's context.
            TurnFailedError: The endpoint refused the call, or every attempt failed.
            TurnCancelledError: The client ended the turn.
        """
        for attempt in range(1, self._settings.attempts + 1):
            try:
                response = self._call(self._body(messages, tools, options))
                completion = read_completion(response)
            except (_TemporaryError, HttpError, BadReplyError) as error:
                if attempt == self._settings.attempts:
                    raise TurnFailedError(
                        "model-unavailable", f"the model failed {attempt} times: {error}"
                    ) from error
                pause = self._settings.backoff * 2 ** (attempt - 1)
                after = error.after if isinstance(error, _TemporaryError) else 0.0
                self._pause(min(max(pause, after), _LONGEST_PAUSE))
            else:
                chain.feed(response)
                return completion
        raise TurnFailedError("model-unavailable", "the settings allow no attempt")

    def _body(self, messages: Sequence[Json], tools: Sequence[Json], options: ModelOptions) -> Json:
        body: Json = {
            **self._settings.sampling,
            "model": options.model,
            "messages": messages,
            "tools": tools,
            "stream": False,
        }
        if options.reasoning_effort:
            body["reasoning_effort"] = options.reasoning_effort
        if self._wants_ids:
            body[TOKEN_FIELD] = True
        return body

    def _call(self, body: Json) -> Json:
        url = f"{self._settings.base_url}/chat/completions"
        headers = {"Authorization": f"Bearer {self._settings.api_key}"}
        timeout = self._settings.model_timeout
        with HttpCall(self._wire, url, json.dumps(body).encode(), headers, timeout=timeout) as call:
            data = call.read(_REPLY_BYTES)
            if call.status == 200:
                return _parsed(data)
            text = data[:4000].decode("utf-8", "replace")
            after = call.header("retry-after")
            again = call.header("x-should-retry") != "false"
        if self._wants_ids and call.status in (400, 422) and TOKEN_FIELD in text:
            self._wants_ids = False
            return self._call({key: body[key] for key in body if key != TOKEN_FIELD})
        if call.status in (400, 413, 422) and _FULL.search(text):
            raise ContextFullError
        reason = f"HTTP {call.status}: {text[:300]}"
        if again and (call.status in _TEMPORARY or call.status >= 500):
            raise _TemporaryError(reason, float(after) if after.isdecimal() else 0.0)
        raise TurnFailedError("model-refused", f"the model endpoint refused the call: {reason}")

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._wire.wait(None, left)


def _parsed(data: bytes) -> Json:
    try:
        return as_object(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise BadReplyError(f"the reply is not JSON: {error!s:.200}") from error
