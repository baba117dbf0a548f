"""Size caps on what a step keeps of an agent's output."""

import json

TEXT_CHARS = 256 * 1024
VALUE_CHARS = 64 * 1024
TOOL_CALLS = 256
"""Per step."""
TITLE_CHARS = 1024


def cap_text(text: str, limit: int = TEXT_CHARS) -> str:
    """Return `text`, cut to `limit` characters with a note of what is gone."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit} more characters were cut]"


def cap_value(value: object, limit: int = VALUE_CHARS) -> object:
    """Return a JSON value, or its cut text when its JSON is longer than `limit`."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return cap_text(value, limit)
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= limit else {"cut": cap_text(text, limit)}
