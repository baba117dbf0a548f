"""A model call in progress."""

import time
from dataclasses import dataclass, field
from typing import Any

from benchflow_contracts import ModelApi, ModelCall, Usage

from .documents import Document, text_of
from .proxied_call import ProxiedCall
from .purpose import Purpose
from .tokens import Tokens, strip_tokens
from .upstream import end_version
from .wires import CHAT

_NEEDED = ("logprobs", "model", "return_token_ids", "stream", "stream_options")
_BYTES_PER_TOKEN = 8
"""A high estimate, so tokens are estimated low: common text has about four bytes per token."""


@dataclass(slots=True)
class Draft:
    """The fields of a call that are known so far; see `ModelCall`."""

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
    upstream_api: ModelApi | None = None
    """The wire of the upstream, if it gets another request. So are the next fields."""
    upstream_request: Document = field(default_factory=dict[str, Any])
    """The translated request of a recorded call; empty if `upstream_text` has it."""
    upstream_text: bytes | None = None
    upstream_response: Document | None = None
    model: str | None = None
    policy_version: str | None = None
    end_policy_version: str | None = None
    tokens: Tokens = field(default_factory=Tokens)
    usage: Usage = field(default_factory=Usage)
    charged: bool = False
    """Whether the call was sent to the upstream, so its tokens count."""
    replayed: bool = False
    diverged: bool = False
    error: str | None = None
    recorded: bool = False

    @property
    def size(self) -> int:
        """The bytes of the requests in the record."""
        return len(self.text) + len(self.upstream_text or b"")

    def forward(self, proxied: ProxiedCall) -> None:
        """Note the request to the upstream, if it is another than the agent's."""
        if proxied.has_own_request:
            self.upstream_api, self.upstream_text = proxied.back.api, proxied.data

    def drop_request(self) -> None:
        """Drop most of the parsed request, because the record needs only its text."""
        self.request = {key: self.request[key] for key in _NEEDED if key in self.request}

    def read_answer(self, proxied: ProxiedCall, body: Document) -> None:
        """Read id, model and usage from the upstream's body."""
        self.tokens = proxied.tokens(body)
        if proxied.has_own_request:
            self.upstream_response = strip_tokens({}, body) if proxied.back is CHAT else body
        self.usage = proxied.back.usage(body)
        model = text_of(body.get("model")) or text_of(body.get("modelVersion"))
        self.model = model or self.model
        self.end_policy_version = end_version(body)
        self.policy_version = self.policy_version or self.end_policy_version or self.model

    def read_partial_answer(self, proxied: ProxiedCall) -> None:
        """Read an answer that broke off. Tokens that the upstream did not count are estimated."""
        body = proxied.state.body()
        if body is None:
            return
        self.read_answer(proxied, body)
        estimate = max(len(self.tokens.completion or ()), proxied.events)
        input_tokens = max(self.usage.input_tokens, len(self.tokens.prompt or ()))
        output_tokens = max(self.usage.output_tokens, estimate)
        self.usage = self.usage.model_copy(
            update={"input_tokens": input_tokens, "output_tokens": output_tokens}
        )
        self.response = proxied.streamed()

    def estimate_input(self, proxied: ProxiedCall) -> None:
        """Estimate the input tokens, if the agent did not wait for the usage.

        Without this, prompts would be free for an agent that disconnects early.
        """
        if not self.usage.input_tokens:
            estimate = len(proxied.data) // _BYTES_PER_TOKEN
            self.usage = self.usage.model_copy(update={"input_tokens": estimate})

    def copy_recorded_answer(self, call: ModelCall) -> None:
        """Copy the answer of a recorded call."""
        self.replayed = True
        self.purpose = call.purpose
        self.response = dict(call.response or {})
        self.upstream_api = call.upstream_api
        self.upstream_request = dict(call.upstream_request)
        self.upstream_response = (
            None if call.upstream_response is None else dict(call.upstream_response)
        )
        self.model, self.policy_version = call.model, call.policy_version
        self.end_policy_version = call.end_policy_version
        self.tokens = Tokens(
            call.prompt_token_ids,
            call.completion_token_ids,
            call.logprobs,
            call.routed_experts,
            call.sampling_mask,
        )
        self.usage = call.usage

    def _changed_version(self) -> str | None:
        is_same = self.end_policy_version == self.policy_version
        return None if is_same else self.end_policy_version

    def to_call(self, cost_usd: float | None) -> ModelCall:
        """Return the call for the record."""
        return ModelCall(
            id=self.id,
            node=self.node,
            api=self.api,
            purpose=self.purpose,
            request=self.request,
            upstream_api=self.upstream_api,
            upstream_request=self.upstream_request,
            response=self.response,
            upstream_response=self.upstream_response,
            status=self.status,
            model=self.model,
            policy_version=self.policy_version,
            end_policy_version=self._changed_version(),
            prompt_token_ids=self.tokens.prompt,
            completion_token_ids=self.tokens.completion,
            logprobs=self.tokens.logprobs,
            routed_experts=self.tokens.experts,
            sampling_mask=self.tokens.mask,
            usage=self.usage,
            cost_usd=cost_usd,
            replayed=self.replayed,
            diverged=self.diverged,
            error=self.error,
            started_at=self.started_at,
            finished_at=time.time(),
        )
