"""From one wire format to another, for a request and for a stream."""

from .translation import Translation, translate_request

__all__ = ["Translation", "translate_request"]
