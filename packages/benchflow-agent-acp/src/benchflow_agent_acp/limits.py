"""Size limits for the output of an agent."""

import json
from dataclasses import dataclass

MIB = 1024 * 1024
TEXT_CHARS = 256 * 1024
VALUE_CHARS = 64 * 1024
TOOL_CALLS = 256
"""Per step."""
TITLE_CHARS = 1024


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Limits of one connection. If an agent exceeds a limit, its session ends with an error.

    The two `log` limits do not end the session: further records are dropped and counted.
    """

    line_bytes: int = 4 * MIB
    json_depth: int = 64
    noise_lines: int = 1000
    """The number of lines that are not JSON, such as banners."""
    turn_bytes: int = 128 * MIB
    """The bytes that the agent may write to stdout within one call."""
    pending_requests: int = 64
    """The number of the agent's requests that may wait for a reply at once."""
    steps: int = 5000
    """Per session."""
    log_bytes: int = 64 * MIB
    log_stderr_bytes: int = 8 * MIB


def cap_text(text: str, limit: int = TEXT_CHARS) -> str:
    """Return `text`, cut to `limit` characters, with a note of the number that was cut."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit} more characters were cut]"


def cap_value(value: object, limit: int = VALUE_CHARS) -> object:
    """Return a JSON value, or the start of its JSON text if the text is longer than `limit`."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return cap_text(value, limit)
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= limit else {"cut": cap_text(text, limit)}
