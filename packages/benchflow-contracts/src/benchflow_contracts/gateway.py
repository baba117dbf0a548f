"""The model gateway, which records every model call of a rollout before it answers."""

import base64
import binascii
import math
import struct
import sys
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, Self, runtime_checkable

from pydantic import Field, model_validator

from ._model import RareModel
from .door import Endpoint
from .errors import BenchFlowError, HostError
from .step import Usage

ModelApi = Literal["openai-chat", "openai-responses", "anthropic-messages", "gemini"]
"""The wire formats that agents speak."""


UpstreamProtocol = Literal["same", "openai", "vllm", "anthropic"]
"""`same` is the agent's own wire. `openai` and `vllm` are Chat Completions, and vLLM is asked for
token ids and log-probabilities. `anthropic` is Messages."""

TokenLevel = Literal["tokens+logprobs", "tokens", "text"]
"""What the answers of a model endpoint have. `tokens+logprobs`: they can be trained on. `tokens`:
prompts and answers have token ids, and log-probabilities are missing. `text`: no token ids."""


MAX_TOKEN_SEC: Final = 24 * 3600
"""The longest time for which the token of a public route is valid."""


class PolicyEndpoint(Endpoint):
    """A model endpoint whose model, protocol and weights are known."""

    policy_version: str | None = None
    """Recorded with each call, unless the upstream reports another version in a header."""
    model: str | None = None
    """The model to request, instead of the agent's."""
    protocol: UpstreamProtocol = "same"


_ITEM_BYTES: Final = {"uint8": 1, "uint16": 2, "int16": 2, "int32": 4}
_CODES: Final = {"uint8": "B", "uint16": "H", "int16": "h", "int32": "i"}


class RoutedExperts(RareModel):
    """The experts that a mixture-of-experts model used, for a range of the tokens of one call.

    An array [tokens, layers, top_k], as vLLM sends it and verifiers reads it. A trainer that
    replays the routing needs it. The last sampled token of a call has no row, because the model
    did not read this token.
    """

    data: str = Field(repr=False)
    """The array in C order, little-endian, as base64."""
    shape: tuple[int, int, int]
    """Tokens, layers and experts of each layer."""
    start: int = Field(default=0, ge=0)
    """The number of tokens before the first row."""
    dtype: Literal["uint8", "uint16", "int16", "int32"] = "uint8"

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        try:
            found = len(base64.b64decode(self.data, validate=True))
        except binascii.Error as error:
            raise ValueError(f"data is not base64: {error}") from None
        if (
            self.shape[0] < 0
            or min(self.shape[1:]) < 1
            or found != math.prod(self.shape) * _ITEM_BYTES[self.dtype]
        ):
            raise ValueError(f"{found} bytes are not an array of shape {self.shape}")
        return self

    def rows(self, begin: int, end: int) -> "RoutedExperts | None":
        """Return one row for each token from `begin` to before `end`; `None` if one is missing.

        The last sampled token gets the row of the token before, as in verifiers. A later call that
        reads this token has its row: see `with_last_row_of`.
        """
        first, last = begin - self.start, end - self.start
        if not 0 <= first < last <= self.shape[0] + 1 or not self.shape[0]:
            return None
        size = self.shape[1] * self.shape[2] * _ITEM_BYTES[self.dtype]
        data = self.tobytes()
        part = (data + data[-size:])[first * size : last * size]
        return self.model_copy(
            update={
                "data": base64.b64encode(part).decode(),
                "shape": (last - first, *self.shape[1:]),
                "start": begin,
            }
        )

    def with_last_row_of(self, later: "RoutedExperts") -> "RoutedExperts":
        """Return the array with its last row as in `later`, if `later` has a row for this token."""
        end = self.start + self.shape[0]
        at = end - 1 - later.start
        if (later.dtype, later.shape[1:]) != (self.dtype, self.shape[1:]):
            return self
        if not 0 <= at < later.shape[0]:
            return self
        size = self.shape[1] * self.shape[2] * _ITEM_BYTES[self.dtype]
        row = later.tobytes()[at * size : (at + 1) * size]
        data = base64.b64encode(self.tobytes()[:-size] + row).decode()
        return self.model_copy(update={"data": data})

    def tobytes(self) -> bytes:
        """Return the array in C order, little-endian."""
        return base64.b64decode(self.data)

    def tolist(self) -> list[list[list[int]]]:
        """Return the array as lists: tokens, layers, experts."""
        items = array(_CODES[self.dtype], self.tobytes())
        if sys.byteorder == "big":
            items.byteswap()
        tokens, layers, top_k = self.shape
        width = layers * top_k
        return [
            [list(items[at : at + top_k]) for at in range(t * width, (t + 1) * width, top_k)]
            for t in range(tokens)
        ]


class SamplingMask(RareModel):
    """The tokens that top-k, top-p and min-p left for sampling, for each sampled token of one call.

    The log-probabilities of such a call may be normalised over these tokens alone, as those of
    vLLM with `--logprobs-mode processed_logprobs`. A trainer then normalises over them, too.
    """

    ids: str = Field(repr=False)
    """The ids of all rows, as int32, little-endian, in base64."""
    counts: str = Field(repr=False)
    """The length of each row, likewise."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "SamplingMask":
        """Return the mask with one row of token ids for each sampled token.

        Raises:
            ValueError: An id does not fit into 32 bits.
        """
        ids = [token for row in rows for token in row]
        return cls(ids=_packed(ids), counts=_packed([len(row) for row in rows]))

    def tolist(self) -> list[list[int]]:
        """Return one row of token ids for each sampled token."""
        ids, rows, at = _unpacked(self.ids), list[list[int]](), 0
        for count in _unpacked(self.counts):
            rows.append(ids[at : at + count])
            at += count
        return rows

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        counts = _unpacked(self.counts)
        if min(counts, default=1) < 1 or sum(counts) != len(_unpacked(self.ids)):
            raise ValueError("the counts of a sampling mask are not those of its ids")
        return self


def _packed(values: Sequence[int]) -> str:
    try:
        return base64.b64encode(struct.pack(f"<{len(values)}i", *values)).decode()
    except struct.error as error:
        raise ValueError(f"not an id of a token: {error}") from None


def _unpacked(text: str) -> list[int]:
    try:
        data = base64.b64decode(text, validate=True)
        return list(struct.unpack(f"<{len(data) // 4}i", data))
    except (binascii.Error, struct.error) as error:
        raise ValueError(f"not an array of int32 in base64: {error}") from None


class EndpointProbe(RareModel):
    """The answer of a model endpoint to a request for one token."""

    level: TokenLevel | None = None
    """`None`: the endpoint gave no answer."""
    error: str | None = None
    """Why the level is not known."""


class ModelCall(RareModel):
    """One model call: its request and its response. It never contains credentials."""

    id: str
    node: str
    """The node of the call's route."""
    api: ModelApi
    purpose: Literal["main", "aux"] = "main"
    """`aux`: a call beside the agent's work, such as one for a title of the session."""
    request: Mapping[str, Any]
    """The body as the agent sent it. For Gemini, also `model` and `stream` from the path."""
    upstream_api: ModelApi | None = None
    """The wire format of the upstream, if the gateway translated the call or set its sampling."""
    upstream_request: Mapping[str, Any] = {}
    """The body as the gateway sent it, if it translated the call. The token ids belong to it."""
    response: Mapping[str, Any] | None = None
    """The whole response in the agent's wire format, also if it was streamed; `None` without a
    response."""
    upstream_response: Mapping[str, Any] | None = None
    """The upstream's whole response, if the gateway translated the call. Without token ids and
    log-probabilities, which have their own fields."""
    status: int
    """Of the HTTP response to the agent; 0 if the agent disconnected before it."""
    model: str | None = None
    policy_version: str | None = None
    """The version of the weights: from a header of the upstream, else that of its
    `PolicyEndpoint`, else the model that the upstream names. At the beginning of the call, if the
    weights changed meanwhile."""
    end_policy_version: str | None = None
    """The version at the end of the call: from the upstream, or that of a later `swap` to the same
    model at the same URL. `None`: it is `policy_version`."""
    prompt_token_ids: tuple[int, ...] | None = None
    completion_token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    """One per completion token."""
    routed_experts: RoutedExperts | None = None
    """For the tokens of the prompt and of the completion."""
    sampling_mask: SamplingMask | None = None
    """One row for each completion token, if the upstream sent it."""
    usage: Usage = Usage()
    cost_usd: float | None = Field(default=None, ge=0)
    replayed: bool = False
    """Whether the response came from a recorded call."""
    diverged: bool = False
    """Whether the request differs from the recorded one in a replay."""
    error: str | None = None
    started_at: float
    """Seconds since the epoch."""
    finished_at: float

    @property
    def is_mixed(self) -> bool:
        """Whether the weights changed during the call, so that several versions sampled it."""
        return self.end_policy_version not in (None, self.policy_version)


class CallBudget(RareModel):
    """Limits on the calls of one route. A call over a limit is refused."""

    calls: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    cost_usd: float | None = Field(default=None, ge=0)
    messages: int | None = Field(default=None, ge=0)
    """Messages of one request, in the form of Chat Completions. A request with as many is refused,
    and one whose messages cannot be counted."""
    earlier: Usage = Usage()
    """Tokens before this route, which `cost_usd` includes."""


class ModelRoute(Protocol):
    """The model endpoint of one node of one rollout."""

    @property
    def endpoint(self) -> Endpoint:
        """Where the sandbox's `model` door leads: the URL names the rollout and the node."""
        ...

    @property
    def in_flight(self) -> int:
        """The number of calls without a complete response."""
        ...

    @property
    def error(self) -> BenchFlowError | None:
        """Why the route ended its agent's work; `None` while it serves.

        The agent caused an `AgentError`, such as a reached limit. After any other error, such as
        `ReplayDivergedError`, the rollout must end without a score.
        """
        ...

    @property
    def unplayed(self) -> int:
        """The number of recorded calls of the agent's work that it has not repeated."""
        ...

    def watch(self, on_error: Callable[[BenchFlowError], None]) -> None:
        """Call `on_error` once when there is an `error`, at once if there is one already."""
        ...

    def calls(self) -> Sequence[ModelCall]:
        """Return the calls with a response so far, in the order in which they began."""
        ...

    def outline(self) -> Sequence[ModelCall]:
        """Return the calls so far, in the order in which they ended.

        Requests, responses and tokens may be missing, so that frequent calls are cheap.
        """
        ...

    async def quiesce(self, timeout: float) -> bool:
        """Wait until no call is in flight; return false after `timeout` seconds."""
        ...

    async def swap(self, upstream: Endpoint) -> None:
        """Send later calls to `upstream`. Calls in flight stay at the old upstream.

        If `upstream` is the same model at the same URL with other weights, calls in flight end
        with the new `policy_version`: they are mixed.

        A `PolicyEndpoint` also replaces the model and the protocol of later calls.
        """
        ...

    async def aclose(self) -> None:
        """Refuse later calls and cut those in flight. Keep the record. Idempotent."""
        ...


@runtime_checkable
class SupportsCallReports(Protocol):
    """A `ModelRoute` that reports each call when it ends."""

    def on_call(self, callback: Callable[[ModelCall], None]) -> None:
        """Call `callback` with the outline of each call from now on, after it is recorded.

        The callback must not block or raise.
        """
        ...


@runtime_checkable
class SupportsMessages(Protocol):
    """A `ModelRoute` that returns its conversation in one form, whatever the agent's wire is."""

    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Return the messages of the last answered call of the agent's work, and its answer.

        They are messages of Chat Completions. Empty without such a call.

        Raises:
            EvidenceMissingError: Chat Completions cannot express them.
        """
        ...


@runtime_checkable
class SupportsPublicAccess(Protocol):
    """A `ModelRoute` that sandboxes on other machines can reach without a tunnel."""

    async def publish(self, *, seconds: float) -> Endpoint:
        """Return a URL for other machines, with a new token in the header `Authorization`.

        The token is valid for this route only, for `seconds` and until the route is closed. Other
        requests get 401. After its end, a call with the token also ends the agent's work: the
        route's `error` is an `AgentError`.

        Raises:
            UsageError: The gateway has no public address, or the route is public already.
        """
        ...


@runtime_checkable
class KnowsReach(Protocol):
    """A `ModelRoute` that knows whether the agent has reached it by its public URL."""

    @property
    def unreached(self) -> HostError | None:
        """An error if the route is public and no call has reached it.

        After the agent's work, the agent did not act through its model. The cause may be the
        network of the sandbox, or a cloud that does not add the token.
        """
        ...


class PendingCall(RareModel):
    """A model call whose request has arrived, and which has no answer."""

    number: int | None = Field(ge=1)
    """From 1: the calls of the agent's work that the route has answered with 200, replayed ones
    too, plus 1. `None` for a call beside the work."""
    digest: str
    """Two requests have the same digest if a replay takes them for equal."""


CallGate = Callable[[PendingCall], Awaitable[bool]]
"""Returns whether a call goes to the upstream."""


@runtime_checkable
class SupportsCallGate(Protocol):
    """A `ModelRoute` that asks before a call goes to the upstream."""

    def before_call(self, gate: CallGate) -> None:
        """Await `gate` with each complete request that the upstream would answer, from now on.

        The agent waits meanwhile. If the result is false, the agent gets a temporary error
        (HTTP 503) and repeats its request later. Such a request is not a call: it is not
        recorded, not counted, and costs nothing. The gate must not raise.
        """
        ...


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """The start of an endpoint's answer to a model call."""

    url: str
    """As `Endpoint.url`."""
    status: int
    """The HTTP status."""
    retry_after: float | None = None
    """Seconds that the endpoint asks to wait."""


class ModelGateway(Protocol):
    """Creates routes to a model, for sandboxes without a network."""

    async def open(
        self,
        rollout_id: str,
        node: str,
        *,
        upstream: Endpoint,
        replay: Sequence[ModelCall] = (),
        budget: CallBudget | None = None,
    ) -> ModelRoute:
        """Create the route of a node.

        The calls of `replay` are answered from the record, in order, as long as each request
        equals the recorded one. After the last of them, `upstream` answers. A request that differs
        is refused and marked `diverged`, and the route's `error` is a `ReplayDivergedError`.
        """
        ...

    async def aclose(self) -> None:
        """Close every route. Idempotent."""
        ...
