"""Translate a call: the request to the upstream's wire, and the answer to the agent's wire."""

from collections.abc import Callable, Iterator

from benchflow_contracts import ModelApi

from benchflow_gateway.documents import Document, documents
from benchflow_gateway.sse import Event
from benchflow_gateway.wires import Wire

from .chat_request import read_chat, write_chat
from .chat_stream import ChatReader, ChatWriter
from .delta import DeltaReader, DeltaWriter
from .gemini_request import read_gemini
from .gemini_stream import GeminiWriter
from .messages_request import read_messages, write_messages
from .messages_stream import MessagesReader, MessagesWriter
from .prompt import Prompt
from .responses_request import read_responses
from .responses_stream import ResponsesWriter

_READ: dict[ModelApi, Callable[[Document], Prompt]] = {
    "openai-chat": read_chat,
    "openai-responses": read_responses,
    "anthropic-messages": read_messages,
    "gemini": read_gemini,
}
_WRITE: dict[ModelApi, Callable[[Prompt], Document]] = {
    "openai-chat": write_chat,
    "anthropic-messages": write_messages,
}
_READERS: dict[ModelApi, type[DeltaReader]] = {
    "openai-chat": ChatReader,
    "anthropic-messages": MessagesReader,
}


def translate_request(body: Document, front: Wire, back: Wire) -> tuple[Document, "Translation"]:
    """Return the request in the wire of `back`, and the translation of its answer.

    Raises:
        RefusedError: `back` cannot express the request.
    """
    prompt = _READ[front.api](body)
    return _WRITE[back.api](prompt), Translation(front, back, prompt)


def translate_messages(body: Document, api: ModelApi) -> list[Document]:
    """Return the conversation of a request in the wire `api` as messages of Chat Completions.

    Raises:
        RefusedError: Chat Completions cannot express it.
    """
    return documents(write_chat(_READ[api](body)).get("messages"))


class Translation:
    """Translates the events of the upstream to events of the agent's wire."""

    def __init__(self, front: Wire, back: Wire, prompt: Prompt) -> None:
        self._front = front
        self._back = back
        self._reader = _READERS[back.api]()
        self._writer = _writer(front.api, prompt)
        self.last = self._reader.last
        """The last event of a complete stream, for an upstream that omits it."""

    def events(self, event: Event) -> Iterator[Event]:
        """Yield `event` in the agent's wire. Raise `DocumentError` if it is malformed."""
        for delta in self._reader.read(event):
            yield from self._writer.write(delta)

    def body(self, body: Document) -> Document:
        """Return a whole answer in the agent's wire."""
        fold = self._front.fold()
        for event in self._back.explode(body):
            for translated in self.events(event):
                fold.feed(translated)
        return fold.body() or {}


def _writer(api: ModelApi, prompt: Prompt) -> DeltaWriter:
    if api == "openai-chat":
        return ChatWriter(usage=prompt.usage)
    if api == "anthropic-messages":
        return MessagesWriter()
    if api == "gemini":
        return GeminiWriter()
    return ResponsesWriter(prompt.tools)
