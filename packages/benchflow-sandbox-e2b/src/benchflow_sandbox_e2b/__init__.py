"""Sandboxes of E2B, and of every server that speaks its API."""

from .provider import E2bProvider

__all__ = ["E2bProvider"]
