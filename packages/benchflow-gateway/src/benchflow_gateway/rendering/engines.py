"""Engines that sample token ids after token ids."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import aiohttp
from benchflow_contracts import UsageError

from benchflow_gateway.documents import Document, as_document, documents, items_of, text_of
from benchflow_gateway.errors import RefusedError

EngineKind = Literal["vllm", "skyrl", "sglang", "tinker"]
_MISSING = -9999.0
"""vLLM's log-probability of a token whose log-probability is not known."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The parameters of one sample."""

    values: Mapping[str, float]
    """Such as `temperature`, by the names of vLLM."""
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens that an engine sampled."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """One for each token; `None` if the engine did not return all of them."""
    finish_reason: str
    """`stop`, `length`, or another word of the engine."""
    version: str | None = None
    """The weights, if the engine names them."""
    routed_experts: Document | None = None
    """The experts of each token in vLLM's format, if the engine sends them."""
    sampling_mask: Sequence[object] = ()
    """The tokens that each token was sampled from, if the engine sends them."""


class Engine(Protocol):
    """Samples after a prompt of token ids."""

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, stop: Sequence[int], model: str
    ) -> Sampled:
        """Return one sample, which ends with one of the tokens `stop` or at the limit.

        Raises:
            RefusedError: The engine cannot be reached, refused, or sent what is not an answer.
        """
        ...


class GenerateEngine:
    """vLLM's `/inference/v1/generate`, and SkyRL's `/skyrl/v1/generate`, which has its shape.

    As in the client of `renderers` 0.1.12 and the server of skyrl 0.3.0.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, kind: EngineKind) -> None:
        root = url.rstrip("/").removesuffix("/v1")
        path = "/skyrl/v1/generate" if kind == "skyrl" else "/inference/v1/generate"
        self._session = session
        self._url = root + path

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, stop: Sequence[int], model: str
    ) -> Sampled:
        """See `Engine`."""
        params: Document = {**sampling.values, "stop_token_ids": list(stop), "logprobs": 1}
        params["skip_special_tokens"] = False
        if sampling.max_tokens is not None:
            params["max_tokens"] = sampling.max_tokens
        body = {"model": model, "token_ids": list(prompt), "sampling_params": params}
        answer, version = await post(self._session, self._url, body)
        choices = documents(answer.get("choices"))
        choice: Document = choices[0] if choices else {}
        entries = documents(as_document(choice.get("logprobs")).get("content"))
        tokens = _token_ids(choice.get("token_ids"))
        return Sampled(
            tokens,
            _logprobs([entry.get("logprob") for entry in entries], len(tokens)),
            text_of(choice.get("finish_reason")) or "stop",
            version,
            as_document(choice.get("routed_experts")) or None,
            items_of(choice.get("sampling_mask")),
        )


class SglangEngine:
    """SGLang's `/generate`, as in sglang 0.5.23: each logprob is `[logprob, token id, text]`."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, *, sampling_mask: bool = False
    ) -> None:
        """Prepare the engine. `sampling_mask` asks for the tokens that top-k and top-p leave."""
        self._session = session
        self._mask = {"return_sampling_mask": True} if sampling_mask else {}
        self._url = url.rstrip("/").removesuffix("/v1") + "/generate"

    async def sample(
        self, prompt: Sequence[int], sampling: Sampling, stop: Sequence[int], model: str
    ) -> Sampled:
        """See `Engine`. The server has one model; `model` is not sent."""
        del model
        params: Document = {**sampling.values, "stop_token_ids": list(stop)}
        if "seed" in params:
            params["sampling_seed"] = params.pop("seed")
        params |= {"skip_special_tokens": False, "no_stop_trim": True}
        if sampling.max_tokens is not None:
            params["max_new_tokens"] = sampling.max_tokens
        body = {"input_ids": list(prompt), "sampling_params": params, "return_logprob": True}
        body |= self._mask
        answer, version = await post(self._session, self._url, body)
        meta = as_document(answer.get("meta_info"))
        entries = [items_of(entry) for entry in items_of(meta.get("output_token_logprobs"))]
        named = [entry[1] for entry in entries if len(entry) > 1]
        tokens = _token_ids(answer.get("output_ids") or named)
        # Log-probabilities of other tokens are not those of the sample.
        values = [entry[0] for entry in entries if entry] if named == list(tokens) else []
        # With a mask, the log-probabilities are those within the mask.
        inside = items_of(meta.get("output_token_sampling_logprobs"))
        mask = items_of(meta.get("output_token_sampling_mask")) if inside else []
        reason = meta.get("finish_reason")
        return Sampled(
            tokens,
            _logprobs(inside if mask else values, len(tokens)),
            text_of(as_document(reason).get("type")) or text_of(reason) or "stop",
            version or text_of(meta.get("weight_version")) or None,
            sampling_mask=mask,
        )


def engine_of(
    kind: EngineKind,
    url: str,
    session: aiohttp.ClientSession,
    api_key: str | None = None,
    *,
    sampling_mask: bool = False,
) -> Engine:
    """Return the engine of a kind at a base URL, with or without `/v1`.

    The session has the key; the client of Tinker gets `api_key`. SGLang is asked for sampling
    masks by `sampling_mask`; vLLM sends them if it was started with `--return-sampling-mask`.

    Raises:
        UsageError: The package of the engine is not installed, or it is not asked for masks.
    """
    if sampling_mask and kind != "sglang":
        raise UsageError(
            f"engine {kind!r} is not asked for sampling masks",
            hint="start vLLM with --return-sampling-mask, and leave this option out",
        )
    if kind == "tinker":
        from .tinker_engine import TinkerEngine  # noqa: PLC0415 - needs this module

        return TinkerEngine(url, api_key)
    if kind == "sglang":
        return SglangEngine(session, url, sampling_mask=sampling_mask)
    return GenerateEngine(session, url, kind)


async def post(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]
) -> tuple[Document, str | None]:
    """Send a request to an engine; return its answer, and the version in a header.

    Raises:
        RefusedError: The engine cannot be reached, refused, or did not send a JSON object.
    """
    try:
        async with session.post(url, json=body, allow_redirects=False) as answer:
            version = answer.headers.get("x-policy-version")
            if answer.status != 200:
                text = (await answer.text(errors="replace"))[:500]
                status = answer.status if answer.status >= 400 else 502
                raise RefusedError("upstream", status, f"the engine answered {status}: {text}")
            return as_document(await answer.json(content_type=None)), version
    except TimeoutError as error:
        raise RefusedError("upstream", 504, "the engine did not answer") from error
    except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
        message = f"the engine failed ({type(error).__name__})"
        raise RefusedError("upstream", 502, message) from error


def _token_ids(value: object) -> tuple[int, ...]:
    items = items_of(value)
    ids = tuple(item for item in items if type(item) is int and item >= 0)
    if not ids or len(ids) != len(items):
        raise RefusedError("upstream", 502, "the engine sent no token ids")
    return ids


def _logprobs(values: Sequence[object], length: int) -> tuple[float, ...] | None:
    numbers = tuple(
        float(value)
        for value in values
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > _MISSING
    )
    return numbers if len(numbers) == len(values) == length else None
