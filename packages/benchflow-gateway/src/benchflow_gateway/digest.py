"""When two requests are the same request, asked at another time and place."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, cast

# What an agent sets per process, or what changes how an answer comes and not which.
_IGNORED = {
    "client_metadata",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream",
    "stream_options",
    "user",
}
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? "
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?(?:Z|[AP]M|UTC|GMT|[+-]\d{2}:?\d{2}))*"
_VOLATILE = re.compile(
    "|".join(
        (
            r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
            rf"\b\d{{4}}-\d{{2}}-\d{{2}}(?:[T ]{_CLOCK})?",
            rf"\b(?:{_DAY})?{_MONTH} \d{{1,2}},? (?:{_CLOCK} )?\d{{4}}(?:,? {_CLOCK})?",
            rf"\b(?:{_DAY})?\d{{1,2}} {_MONTH} \d{{4}}(?: {_CLOCK})?",
            r"\b\d{1,2}/\d{1,2}/\d{4}\b",
            r"\b1[6-9]\d{8}(?:\d{3})?\b",
            r"/tmp/[\w.+-]+",  # noqa: S108 - read, not written
        )
    )
)
# Claude Code signs each request in a system block of this name.
_SIGNATURE = "x-anthropic-billing-header"


def request_digest(api: str, body: Mapping[str, Any]) -> str:
    """Return what a request is told from others by, in a replay.

    Dates, times, UUIDs, names below `/tmp` and per-process fields count for nothing; the
    model, the tools and every other word that was said count.
    """
    kept = {key: _unsigned(value) for key, value in body.items() if key not in _IGNORED}
    text = json.dumps([api, kept], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(_VOLATILE.sub("~", text).encode()).hexdigest()


def _unsigned(value: object) -> object:
    if not isinstance(value, list):
        return value
    return [item for item in cast("list[object]", value) if not _is_signature(item)]


def _is_signature(item: object) -> bool:
    if not isinstance(item, dict):
        return False
    text = cast("dict[str, object]", item).get("text")
    return isinstance(text, str) and text.startswith(_SIGNATURE)
