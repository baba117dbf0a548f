"""The kind of a model endpoint, and the tokens that its answers have."""

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from benchflow_contracts import AgentError, Endpoint, UsageError
from benchflow_contracts.gateway import EndpointProbe, UpstreamProtocol

if TYPE_CHECKING:
    from .config import RunConfig

UpstreamChoice = Literal["same", "openai", "vllm", "anthropic", "auto"]
_RETRY_SEC: Final = 60.0
"""An endpoint that gave no answer may have started meanwhile."""
_KNOWN: Final[dict[tuple[str, str], tuple[float, EndpointProbe]]] = {}
"""The time and the result of each probe of this process, by URL and model."""
_ASKED: Final[dict[tuple[str, str], asyncio.Task[EndpointProbe]]] = {}
"""The requests without an answer."""
_logger = logging.getLogger(__name__)


class TokensMissingError(AgentError):
    """The answers of the model endpoint cannot be trained on, and tokens are required."""

    default_culprit = "operator"
    default_hint = "serve the model with token ids and log-probabilities, as vLLM does, or leave"
    default_hint += " out --require-tokens"


async def settle_model(config: "RunConfig") -> tuple[UpstreamProtocol, EndpointProbe | None]:
    """Return the protocol of the model endpoint of a run, and its probe if there was one.

    Raises:
        TokensMissingError: Tokens are required, and the endpoint does not return them.
        UsageError: Tokens are required, and its protocol has none.
    """
    model = config.model
    endpoint = model.endpoint()
    if endpoint is None:
        return "same" if model.upstream == "auto" else model.upstream, None
    return await settle_upstream(
        model.upstream, endpoint, config.agent.model, require_tokens=model.require_tokens
    )


async def settle_upstream(
    kind: UpstreamChoice, endpoint: Endpoint, model: str | None, *, require_tokens: bool = False
) -> tuple[UpstreamProtocol, EndpointProbe | None]:
    """Return the protocol of an endpoint, and its probe if there was one.

    An endpoint is probed if its kind is `auto` or if tokens are required: once in this process for
    each URL and model. With `auto`, an endpoint that gives no answer is `openai`, with a warning.

    Raises:
        TokensMissingError: Tokens are required, and the endpoint does not return them.
        UsageError: Tokens are required, and its protocol has none.
    """
    if kind != "auto" and not require_tokens:
        return kind, None
    if require_tokens and kind not in ("auto", "vllm"):
        raise UsageError(
            f"tokens are required, and upstream {kind!r} returns none",
            hint="use --upstream vllm or --upstream auto",
        )
    probe = await _probe(endpoint, model or "")
    if require_tokens and probe.level != "tokens+logprobs":
        raise TokensMissingError(
            probe.error or f"the answers of {_shown(endpoint)} have the level {probe.level!r} only"
        )
    if probe.error is not None:
        _logger.warning("the tokens of the model endpoint are not known: %s", probe.error)
    if kind == "auto":
        return "openai" if probe.level in (None, "text") else "vllm", probe
    return kind, probe


async def _probe(endpoint: Endpoint, model: str) -> EndpointProbe:
    """Return the probe of an endpoint. Callers at one time share one request."""
    key = endpoint.url, model
    at, known = _KNOWN.get(key, (0.0, None))
    if known is not None and (known.level or time.monotonic() - at < _RETRY_SEC):
        return known
    loop = asyncio.get_running_loop()
    asked = _ASKED.get(key)
    if asked is None or asked.get_loop() is not loop:
        asked = _ASKED[key] = loop.create_task(_ask(endpoint, model))
        asked.add_done_callback(partial(_keep, key))
    return await asyncio.shield(asked)


def _keep(key: tuple[str, str], asked: asyncio.Task[EndpointProbe]) -> None:
    if _ASKED.get(key) is asked:
        del _ASKED[key]
    if not asked.cancelled() and asked.exception() is None:
        _KNOWN[key] = time.monotonic(), asked.result()


async def _ask(endpoint: Endpoint, model: str) -> EndpointProbe:
    # Only a run that probes needs the HTTP client, so the import is late.
    from benchflow_gateway import ProbeError, probe_tokens  # noqa: PLC0415

    try:
        return EndpointProbe(level=await probe_tokens(endpoint, model))
    except ProbeError as error:
        return EndpointProbe(error=str(error))


def _shown(endpoint: Endpoint) -> str:
    return endpoint.url.partition("?")[0]
