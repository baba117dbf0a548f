"""The model gateway: every model call of a rollout, recorded before it is answered."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from pydantic import Field

from ._model import Model
from .door import Endpoint
from .errors import BenchFlowError
from .step import Usage

ModelApi = Literal["openai-chat", "openai-responses", "anthropic-messages", "gemini"]
"""The wire formats that agents speak."""


class ModelCall(Model):
    """One call of a model, as it was made and as it was answered.

    Credentials are never in it.
    """

    id: str
    node: str
    """The node of the route that the call was made on."""
    api: ModelApi
    purpose: Literal["main", "aux"] = "main"
    """`aux` is what an agent asks beside its work, such as a title for the session."""
    request: Mapping[str, Any]
    """The body as the agent sent it; of Gemini also the `model` and `stream` of its path."""
    response: Mapping[str, Any] | None = None
    """The whole answer in the agent's wire format, also of a streamed one; `None` when
    there was none."""
    status: int
    """Of the HTTP answer to the agent; 0 when the agent went away before one."""
    model: str | None = None
    policy_version: str | None = None
    """Which weights answered, when the upstream says so."""
    prompt_token_ids: tuple[int, ...] | None = None
    completion_token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    """One per completion token."""
    usage: Usage = Usage()
    cost_usd: float | None = Field(default=None, ge=0)
    replayed: bool = False
    """Whether a recorded call answered it."""
    diverged: bool = False
    """Whether a replay was asked for and this request was not the recorded one."""
    error: str | None = None
    started_at: float
    """Seconds since the epoch."""
    finished_at: float


class CallBudget(Model):
    """Bounds on one route's calls. The call that would pass one is refused."""

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
        """Calls that are not wholly answered."""
        ...

    @property
    def error(self) -> BenchFlowError | None:
        """Why the route ended its agent's work; `None` while it serves.

        An `AgentError` is what the agent brought on itself, such as a bound that it passed.
        Of any other error, such as `ReplayDivergedError`, the rollout is to end without a score.
        """
        ...

    @property
    def unplayed(self) -> int:
        """Recorded calls of the agent's work that it has not asked for again."""
        ...

    def watch(self, told: Callable[[BenchFlowError], None]) -> None:
        """Call `told` once when there is an `error`, at once if there is one already."""
        ...

    def calls(self) -> Sequence[ModelCall]:
        """The calls answered so far, in the order in which they began."""
        ...

    def outline(self) -> Sequence[ModelCall]:
        """The calls so far, in the order in which they ended, without what was said.

        Request, response and tokens may be left out, so that it costs little to look often.
        """
        ...

    async def quiesce(self, timeout: float) -> bool:
        """Wait until no call is in flight; false after `timeout` seconds."""
        ...

    async def swap(self, upstream: Endpoint) -> None:
        """Send later calls to `upstream`. Calls in flight end where they began."""
        ...

    async def aclose(self) -> None:
        """Refuse later calls and cut those in flight. What was recorded stays. Idempotent."""
        ...


class ModelGateway(Protocol):
    """How a sandbox without a network reaches a model."""

    async def open(
        self,
        rollout_id: str,
        node: str,
        *,
        upstream: Endpoint,
        replay: Sequence[ModelCall] = (),
        budget: CallBudget | None = None,
    ) -> ModelRoute:
        """Make the route of a node.

        The calls of `replay` are answered from the record, in order, as long as each
        request is the recorded one; after the last of them, `upstream` answers. A request
        that is not the recorded one is refused and marked `diverged`, and the route's
        `error` is a `ReplayDivergedError`.
        """
        ...

    async def aclose(self) -> None:
        """Close every route. Idempotent."""
        ...
