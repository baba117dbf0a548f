"""The wire formats that agents speak, each as a body and as a stream of events."""

from .base import Fold, Wire
from .chat import CHAT
from .gemini import GEMINI, gemini_call
from .messages import MESSAGES
from .responses import RESPONSES

WIRES: tuple[Wire, ...] = (CHAT, RESPONSES, MESSAGES, GEMINI)

__all__ = ["CHAT", "GEMINI", "MESSAGES", "RESPONSES", "WIRES", "Fold", "Wire", "gemini_call"]
