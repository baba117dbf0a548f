"""One structured question to an OpenAI-compatible endpoint."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from benchflow_contracts import Endpoint, RewardError
from benchflow_contracts.pausing import pause_switch
from pydantic import BaseModel, Field, JsonValue, ValidationError

from benchflow_reward.strict_json import StrictJsonError, parse_strict_json

MAX_REPLY_BYTES = 256 * 1024
MAX_BACKOFF_SEC = 30.0
_HINT = "check the judge's endpoint, model and key"


class _Message(BaseModel):
    content: str


class _Choice(BaseModel):
    message: _Message


class _Reply(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class ChatClient:
    """Asks a model for one JSON document that follows a schema."""

    endpoint: Endpoint
    model: str
    timeout_sec: float = 120.0
    """For each attempt."""
    attempts: int = 4
    backoff_sec: float = 1.0
    """Before the second attempt; doubled each time, at most 30 s."""

    async def ask(
        self,
        http: httpx.AsyncClient,
        messages: Sequence[Mapping[str, str]],
        schema: Mapping[str, Any],
    ) -> JsonValue:
        """Return the parsed JSON content of the first choice.

        429, 5xx and broken connections are tried again.

        Raises:
            RewardError: No attempt gave a well-formed reply of at most 256 KiB.
        """
        body = {
            "model": self.model,
            "messages": list(messages),
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "verdict", "strict": True, "schema": schema},
            },
        }
        failure = ""
        for attempt in range(self.attempts):
            if attempt:
                await asyncio.sleep(min(self.backoff_sec * 2 ** (attempt - 1), MAX_BACKOFF_SEC))
            await pause_switch().wait_running()
            try:
                async with asyncio.timeout(self.timeout_sec):
                    status, data = await self._post(http, body)
            except (httpx.TransportError, TimeoutError) as error:
                failure = f"{type(error).__name__}: {error}"
                continue
            if status == 200:
                return _content(data)
            failure = f"HTTP {status}"
            if status != 429 and status < 500:
                break
        raise RewardError(f"the judge {self.model!r} gave no reply: {failure}", hint=_HINT)

    async def _post(self, http: httpx.AsyncClient, body: Mapping[str, Any]) -> tuple[int, bytes]:
        url = self.endpoint.url.rstrip("/") + "/chat/completions"
        headers = dict(self.endpoint.headers)
        async with http.stream("POST", url, json=body, headers=headers) as response:
            data = bytearray()
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > MAX_REPLY_BYTES:
                    raise RewardError(f"the judge's reply is over {MAX_REPLY_BYTES} bytes")
            return response.status_code, bytes(data)


def _content(data: bytes) -> JsonValue:
    try:
        reply = _Reply.model_validate(parse_strict_json(data, max_depth=32))
        content = reply.choices[0].message.content
        return parse_strict_json(content.encode("utf-8", "surrogatepass"), max_depth=4)
    except (StrictJsonError, ValidationError) as error:
        raise RewardError(f"the judge's reply is malformed: {error}", hint=_HINT) from error
