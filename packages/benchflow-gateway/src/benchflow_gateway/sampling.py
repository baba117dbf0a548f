"""Sampling parameters that the operator sets in each call, whatever the agent asked for."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .documents import Document, as_document
from .errors import RefusedError
from .wires import CHAT, GEMINI, MESSAGES, Wire

_LENGTHS: Final = ("max_tokens", "max_completion_tokens")
_MESSAGES: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
}
_RESPONSES: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
}
_GEMINI: Final = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "seed": "seed",
}


@dataclass(frozen=True, slots=True)
class SamplingOverride:
    """Replaces sampling parameters, which have their names in Chat Completions."""

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int | None = None

    def __bool__(self) -> bool:
        return bool(self.values) or self.seed is not None

    def apply(self, request: Document, wire: Wire, call: str) -> Document:
        """Return the request to the upstream with these parameters.

        Each call has a seed of its own, which follows from `seed` and the id of the call. The seed
        is left out where the wire has none.

        Raises:
            RefusedError: The wire does not have a parameter.
        """
        values = dict(self.values)
        if self.seed is not None and wire in (CHAT, GEMINI):
            values["seed"] = call_seed(self.seed, call)
        if wire is CHAT:
            lengths = _LENGTHS if any(name in values for name in _LENGTHS) else ()
            return {k: v for k, v in request.items() if k not in lengths} | values
        names = _MESSAGES if wire is MESSAGES else _GEMINI if wire is GEMINI else _RESPONSES
        renamed = {_name(names, key, wire): value for key, value in values.items()}
        for key in ("stop_sequences", "stopSequences"):
            if isinstance(renamed.get(key), str):
                renamed[key] = [renamed[key]]
        if wire is GEMINI:
            config = as_document(request.get("generationConfig"))
            return {**request, "generationConfig": {**config, **renamed}}
        return {**request, **renamed}


def call_seed(seed: int, call: str) -> int:
    """Return the seed of a call: below 2**31, and the same in a run that is repeated."""
    digest = hashlib.sha256(f"{seed}/{call}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


def _name(names: Mapping[str, str], key: str, wire: Wire) -> str:
    if key not in names:
        raise RefusedError("invalid", 400, f"the protocol {wire.api!r} has no parameter {key!r}")
    return names[key]
