"""Translate requests and streams from one wire format to another."""

from .translation import Translation, translate_messages, translate_request

__all__ = ["Translation", "translate_messages", "translate_request"]
