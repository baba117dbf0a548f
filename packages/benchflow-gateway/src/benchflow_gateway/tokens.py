"""Token ids and log-probabilities in the format of vLLM."""

import math
from dataclasses import dataclass
from typing import cast

from benchflow_contracts import RoutedExperts
from benchflow_contracts.gateway import SamplingMask
from pydantic import ValidationError

from .documents import Document, as_document, documents, items_of


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one answer, if the upstream sent them."""

    prompt: tuple[int, ...] | None = None
    completion: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    experts: RoutedExperts | None = None
    mask: SamplingMask | None = None

    @classmethod
    def of(cls, body: Document) -> "Tokens":
        """Read the tokens of the first choice of a chat completion."""
        choices = documents(body.get("choices"))
        choice: Document = choices[0] if choices else {}
        content = documents(as_document(choice.get("logprobs")).get("content"))
        values = [item.get("logprob") for item in content]
        logprobs = tuple(
            float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)
        )
        completion = _ids(choice.get("token_ids"))
        return cls(
            prompt=_ids(body.get("prompt_token_ids")),
            completion=completion,
            logprobs=logprobs if logprobs and len(logprobs) == len(values) else None,
            experts=_experts(choice.get("routed_experts")),
            mask=_mask(choice.get("sampling_mask"), completion or ()),
        )


def _experts(value: object) -> RoutedExperts | None:
    """Return the routing of an answer; `None` if it is not an array in vLLM's format."""
    try:
        return None if value is None else RoutedExperts.model_validate(value)
    except ValidationError:
        return None


def _mask(value: object, completion: tuple[int, ...]) -> SamplingMask | None:
    """Return the sampling mask; `None` unless each completion token is in a row of its own."""
    rows = [_ids(row) for row in items_of(value)]
    if not rows or len(rows) != len(completion):
        return None
    known = [row for row, token in zip(rows, completion, strict=True) if row and token in row]
    try:
        return SamplingMask.of(known) if len(known) == len(rows) else None
    except ValueError:
        return None


def _ids(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    items = items_of(cast("object", value))
    ids = tuple(item for item in items if type(item) is int)
    return ids if len(ids) == len(items) else None


def ask_for_tokens(request: Document) -> Document:
    """Return the chat request with a request for token ids and log-probabilities."""
    return {**request, "logprobs": True, "return_token_ids": True}


def strip_tokens(request: Document, body: Document) -> Document:
    """Return a body or chunk without the fields that the agent did not request."""
    removed = set[str]() if request.get("logprobs") else {"logprobs"}
    if not request.get("return_token_ids"):
        removed |= {"token_ids", "routed_experts", "sampling_mask"}
        body = {key: value for key, value in body.items() if key != "prompt_token_ids"}
    choices = [
        {key: value for key, value in choice.items() if key not in removed}
        for choice in documents(body.get("choices"))
    ]
    return {**body, "choices": choices}
