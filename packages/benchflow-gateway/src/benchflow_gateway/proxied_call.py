"""One call to an upstream and its answer, unchanged or translated."""

from collections.abc import Callable
from typing import Final

from .documents import Document, as_document, documents, read_document, write_document
from .sse import Event, Frame
from .tokens import Tokens, ask_for_tokens, strip_tokens
from .translate import translate_request
from .upstream import Upstream
from .wires import CHAT, GEMINI, Fold, Wire

_IN_PATH: Final = frozenset({"model", "stream"})
"""The fields of a Gemini request that are in its path."""


class ProxiedCall:
    """Makes the request for the upstream, and reads the answer.

    If both sides speak the same wire and the request needs no more fields, all bytes are forwarded
    unchanged.
    """

    def __init__(
        self,
        front: Wire,
        upstream: Upstream,
        request: Document,
        raw: bytes,
        *,
        override: Callable[[Document, Wire], Document] | None = None,
    ) -> None:
        """`override` changes the request to the upstream."""
        self._front = front
        self.back = upstream.wire(front)
        self._translation = None
        sent = request
        if self.back is not front:
            sent, self._translation = translate_request(request, front, self.back)
        self._is_overridden = override is not None
        if override is not None:
            sent = override(sent, self.back)
        if upstream.model is not None:
            sent = {**sent, "model": upstream.model}
        if self.back is CHAT and sent.get("stream"):
            options = as_document(sent.get("stream_options"))
            if not options.get("include_usage"):
                sent = {**sent, "stream_options": {**options, "include_usage": True}}
        self._asked_tokens = upstream.kind == "vllm"
        if self._asked_tokens:
            sent = ask_for_tokens(sent)
        self.path = self.back.path_of(sent)
        # The path of a Gemini request names its model; its body does not.
        if self.back is GEMINI and self._is_overridden:
            self.data = write_document({k: v for k, v in sent.items() if k not in _IN_PATH})
        else:
            self.data = raw if sent is request or self.back is GEMINI else write_document(sent)
        self._added = sent is not request
        # Do not store the request: it may be large, and the answer may take long.
        options = as_document(request.get("stream_options"))
        self._asked_usage = bool(options.get("include_usage"))
        self._asked = {key: request.get(key) for key in ("logprobs", "return_token_ids")}
        self._back_fold = self.back.fold()
        self._front_fold = front.fold() if self._translation else self._back_fold
        self.events = 0
        """The number of events. The model generated at least as many tokens."""

    @property
    def is_translated(self) -> bool:
        """Whether the upstream speaks another wire than the agent."""
        return self._translation is not None

    @property
    def has_own_request(self) -> bool:
        """Whether the upstream gets a request that the record needs besides the agent's."""
        return self.is_translated or self._is_overridden

    @property
    def state(self) -> Fold:
        """The upstream's answer so far."""
        return self._back_fold

    def forward(self, frame: Frame) -> bytes:
        """Read a frame of the upstream; return the bytes for the agent."""
        if frame.event is None:
            return b"" if self._translation else frame.raw
        self.events += 1
        self._back_fold.feed(frame.event)
        if self._translation is not None:
            return self._translated(frame.event)
        if self._added and self.back is CHAT:
            return self._without_additions(frame)
        return frame.raw

    def finish(self) -> bytes:
        """Return the missing end of the agent's stream, if the upstream ended without one."""
        if self._translation is None or self._back_fold.complete or self._back_fold.failure:
            return b""
        return self._translated(self._translation.last)

    def _translated(self, event: Event) -> bytes:
        assert self._translation is not None
        events = list(self._translation.events(event))
        for translated in events:
            self._front_fold.feed(translated)
        return b"".join(translated.encode() for translated in events)

    def _without_additions(self, frame: Frame) -> bytes:
        assert frame.event is not None
        may_have_additions = self._asked_tokens or '"usage"' in frame.event.data
        if not may_have_additions or not frame.event.data.startswith("{"):
            return frame.raw
        chunk = read_document(frame.event.data)
        if "usage" in chunk and not self._asked_usage:
            if not documents(chunk.get("choices")):
                return b""
            chunk = {key: value for key, value in chunk.items() if key != "usage"}
        elif not self._asked_tokens:
            return frame.raw
        if self._asked_tokens:
            chunk = strip_tokens(self._asked, chunk)
        return Event(frame.event.name, write_document(chunk).decode()).encode()

    def translate_body(self, body: Document) -> Document:
        """Return the upstream's whole answer for the agent."""
        if self._translation is not None:
            return self._translation.body(body)
        return strip_tokens(self._asked, body) if self._asked_tokens else body

    def streamed(self) -> Document | None:
        """Return the answer that was streamed to the agent so far, as a body."""
        body = self._front_fold.body()
        if body is None or self._translation is not None or not self._asked_tokens:
            return body
        return strip_tokens(self._asked, body)

    def tokens(self, body: Document) -> Tokens:
        """Return the tokens in an upstream's body."""
        return Tokens.of(body) if self.back is CHAT else Tokens()
