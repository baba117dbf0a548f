"""Sandboxes of Modal."""

from .provider import ModalProvider

__all__ = ["ModalProvider"]
