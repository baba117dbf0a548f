"""The wire formats that agents speak, each as a body and as a stream of events."""

from .base import Fold, Wire
from .chat import CHAT
from .messages import MESSAGES
from .responses import RESPONSES

WIRES: tuple[Wire, ...] = (CHAT, RESPONSES, MESSAGES)

__all__ = ["CHAT", "MESSAGES", "RESPONSES", "WIRES", "Fold", "Wire"]
