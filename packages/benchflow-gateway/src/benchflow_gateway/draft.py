"""A model call in progress."""

import time
from dataclasses import dataclass, field

from benchflow_contracts import ModelApi, ModelCall, Usage

from .documents import Document, text_of
from .proxied_call import ProxiedCall
from .purpose import Purpose
from .tokens import Tokens

_NEEDED = ("logprobs", "model", "return_token_ids", "stream", "stream_options")
_BYTES_PER_TOKEN = 8
"""Bytes of a request per token; common text has about four."""


@dataclass(slots=True)
class Draft:
    """The known fields of a call so far; `ModelCall` documents them."""

    id: str
    node: str
    api: ModelApi
    purpose: Purpose
    request: Document
    """The whole request until it is forwarded, then only the fields that are still needed."""
    text: bytes
    """The received bytes of the request."""
    started_at: float = field(default_factory=time.time)
    status: int = 0
    response: Document | None = None
    model: str | None = None
    policy_version: str | None = None
    tokens: Tokens = field(default_factory=Tokens)
    usage: Usage = field(default_factory=Usage)
    charged: bool = False
    """Whether the call was sent to the upstream, so its tokens count."""
    replayed: bool = False
    diverged: bool = False
    error: str | None = None
    recorded: bool = False

    def forget(self) -> None:
        """Drop the parsed request: from here on its text is enough."""
        self.request = {key: self.request[key] for key in _NEEDED if key in self.request}

    def note(self, proxied: ProxiedCall, body: Document) -> None:
        """Read id, model and usage from the upstream's body."""
        self.tokens = proxied.tokens(body)
        self.usage = proxied.back.usage(body)
        named = text_of(body.get("model")) or text_of(body.get("modelVersion"))
        self.model = named or self.model
        self.policy_version = self.policy_version or self.model

    def note_cut(self, proxied: ProxiedCall) -> None:
        """Read the part of the answer before the cut. Uncounted tokens are estimated low."""
        body = proxied.state.body()
        if body is None:
            return
        self.note(proxied, body)
        made = max(len(self.tokens.completion or ()), proxied.events)
        sent = max(self.usage.input_tokens, len(self.tokens.prompt or ()))
        made = max(self.usage.output_tokens, made)
        self.usage = self.usage.model_copy(update={"input_tokens": sent, "output_tokens": made})
        self.response = proxied.streamed()

    def note_sent(self, proxied: ProxiedCall) -> None:
        """Estimate low the input tokens, if the agent did not wait for the usage.

        Without this, prompts would be free for an agent that disconnects early.
        """
        if not self.usage.input_tokens:
            sent = len(proxied.data) // _BYTES_PER_TOKEN
            self.usage = self.usage.model_copy(update={"input_tokens": sent})

    def note_recorded(self, call: ModelCall) -> None:
        """Take over the answer of a recorded call."""
        self.replayed = True
        self.purpose = call.purpose
        self.response = dict(call.response or {})
        self.model, self.policy_version = call.model, call.policy_version
        self.tokens = Tokens(call.prompt_token_ids, call.completion_token_ids, call.logprobs)
        self.usage = call.usage

    def done(self, cost_usd: float | None) -> ModelCall:
        """Return the record."""
        return ModelCall(
            id=self.id,
            node=self.node,
            api=self.api,
            purpose=self.purpose,
            request=self.request,
            response=self.response,
            status=self.status,
            model=self.model,
            policy_version=self.policy_version,
            prompt_token_ids=self.tokens.prompt,
            completion_token_ids=self.tokens.completion,
            logprobs=self.tokens.logprobs,
            usage=self.usage,
            cost_usd=cost_usd,
            replayed=self.replayed,
            diverged=self.diverged,
            error=self.error,
            started_at=self.started_at,
            finished_at=time.time(),
        )
