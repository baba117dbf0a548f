"""Free-text tools of the Responses wire, as functions that take one string."""

import json

from benchflow_gateway.documents import Document, DocumentError, read_document, text_of

CUSTOM_PARAMETERS: Document = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}


def wrap_custom(text: str) -> str:
    """Return the arguments of the function that stands for a custom tool."""
    return json.dumps({"input": text})


def unwrap_custom(arguments: str) -> str:
    """Return the free text. Text that is not wrapped is returned unchanged."""
    try:
        return text_of(read_document(arguments).get("input"))
    except DocumentError:
        return arguments
