"""Translate requests and streams from one wire format to another."""

from .translation import Translation, translate_request

__all__ = ["Translation", "translate_request"]
