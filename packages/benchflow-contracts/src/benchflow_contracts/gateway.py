"""The model gateway, which records every model call of a rollout before it answers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from ._model import RareModel
from .door import Endpoint
from .errors import BenchFlowError
from .step import Usage

ModelApi = Literal["openai-chat", "openai-responses", "anthropic-messages", "gemini"]
"""The wire formats that agents speak."""


UpstreamProtocol = Literal["same", "openai", "vllm", "anthropic"]
"""`same` is the agent's own wire. `openai` and `vllm` are Chat Completions, and vLLM is asked for
token ids and log-probabilities. `anthropic` is Messages."""


class PolicyEndpoint(Endpoint):
    """A model endpoint whose model, protocol and weights are known."""

    policy_version: str | None = None
    """Recorded with each call, unless the upstream reports another version in a header."""
    model: str | None = None
    """The model to request, instead of the agent's."""
    protocol: UpstreamProtocol = "same"


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
    `PolicyEndpoint`, else the model that the upstream names."""
    prompt_token_ids: tuple[int, ...] | None = None
    completion_token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    """One per completion token."""
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


class CallBudget(RareModel):
    """Limits on the calls of one route. A call over a limit is refused."""

    calls: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    cost_usd: float | None = Field(default=None, ge=0)


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
