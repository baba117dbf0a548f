"""A chat endpoint over engines that take token ids and return token ids.

The endpoint renders messages with the package `renderers` (extra `benchflow-gateway[rendering]`),
and keeps the sampled tokens: the next prompt of a conversation begins with exactly these.
"""

from .chat import ChatRequest, ChatRequestError
from .conversations import Conversations, PromptOrigin, PromptRenderer
from .endpoint import RenderingEndpoint, serve_rendering
from .engines import Engine, EngineKind, GenerateEngine, Sampled, Sampling, SglangEngine
from .renderer import JsonTokenizer, load_renderer, renderer_names

__all__ = [
    "ChatRequest",
    "ChatRequestError",
    "Conversations",
    "Engine",
    "EngineKind",
    "GenerateEngine",
    "JsonTokenizer",
    "PromptOrigin",
    "PromptRenderer",
    "RenderingEndpoint",
    "Sampled",
    "Sampling",
    "SglangEngine",
    "load_renderer",
    "renderer_names",
    "serve_rendering",
]
