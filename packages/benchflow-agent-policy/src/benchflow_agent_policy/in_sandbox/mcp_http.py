"""An MCP server behind streamable HTTP."""

import json
import re
from collections.abc import Iterator

from .faults import HttpError, ToolError
from .http_call import HttpCall
from .rpc import MESSAGE_BYTES, PROTOCOL_VERSION, result_of
from .wire import Json, Wire, as_list, as_object

_SESSION = "mcp-session-id"
_VISIBLE = re.compile(r"[\x21-\x7e]{1,512}")


class HttpRpc:
    """Posts each message; takes the answer as JSON or from an event stream."""

    def __init__(self, wire: Wire, config: Json) -> None:
        self._wire = wire
        self._url = str(config["url"])
        self._next_id = 1
        pairs = [as_object(item) for item in as_list(config.get("headers"))]
        self._headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": PROTOCOL_VERSION,
            **{str(pair.get("name")): str(pair.get("value")) for pair in pairs},
        }

    def call(self, method: str, params: Json, timeout: float) -> Json:
        """Send a request and wait for its response."""
        request_id = self._next_id
        self._next_id += 1
        body = {"id": request_id, "method": method, "params": params}
        try:
            with self._post(body, timeout) as call:
                if call.status != 200:
                    raise ToolError(f"the tool server answered with HTTP {call.status}")
                session = call.header(_SESSION)
                if _VISIBLE.fullmatch(session):
                    self._headers[_SESSION] = session
                for message in _messages(call):
                    if message.get("id") == request_id and "method" not in message:
                        return result_of(message)
        except HttpError as error:
            raise ToolError(f"the tool server cannot be reached: {error}") from error
        raise ToolError("the tool server ended its answer early")

    def notify(self, method: str) -> None:
        """Send a notification."""
        try:
            with self._post({"method": method}, 30):
                pass
        except HttpError as error:
            raise ToolError(f"the tool server cannot be reached: {error}") from error

    def close(self) -> None:
        """Nothing is held between calls."""

    def _post(self, body: Json, timeout: float) -> HttpCall:
        data = json.dumps({"jsonrpc": "2.0", **body}).encode()
        return HttpCall(self._wire, self._url, data, self._headers, timeout=timeout)


def _messages(call: HttpCall) -> Iterator[Json]:
    if not call.header("content-type").startswith("text/event-stream"):
        yield _parsed(call.read(MESSAGE_BYTES))
        return
    data: list[bytes] = []
    for line in call.lines(MESSAGE_BYTES):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield _parsed(b"\n".join(data))
            data = []


def _parsed(data: bytes) -> Json:
    try:
        return as_object(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the tool server sent no JSON: {error!s:.200}") from error
