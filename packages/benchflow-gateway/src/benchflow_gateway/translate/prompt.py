"""A request, independent of wire formats."""

from dataclasses import dataclass, field
from typing import Literal

from benchflow_gateway.documents import Document, items_of
from benchflow_gateway.errors import RefusedError

Speaker = Literal["user", "assistant"]
Choice = Literal["auto", "any", "none"]


@dataclass(frozen=True, slots=True)
class Text:
    """Text."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image: either base64 `data` with a media type, or a `url`."""

    media_type: str = ""
    data: str = ""
    url: str = ""

    @classmethod
    def of_url(cls, url: str) -> "Image":
        """Return the image at a URL, or in a `data:` URL."""
        if not url.startswith("data:"):
            return cls(url=url)
        media_type, base64, data = url.removeprefix("data:").partition(";base64,")
        if not base64:
            raise untranslatable("a data URL that is not base64")
        return cls(media_type, data)

    def to_url(self) -> str:
        """Return the image as a URL."""
        return self.url or f"data:{self.media_type};base64,{self.data}"


@dataclass(frozen=True, slots=True)
class Use:
    """A tool call of the model. `arguments` is JSON, or free text for a custom tool."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a tool."""

    id: str
    parts: tuple[Text | Image, ...]
    failed: bool = False


Part = Text | Image | Use | Result


@dataclass(frozen=True, slots=True)
class Turn:
    """The consecutive messages of one side."""

    role: Speaker
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. A custom tool takes free text."""

    name: str
    description: str
    parameters: Document
    custom: bool = False
    namespace: str = ""
    """The namespace in the Responses wire. It is also a part of `name`, for the other wires."""


def name_in(namespace: str, name: str) -> str:
    """Return the name of a tool with its namespace."""
    return namespace + name if not namespace or namespace.endswith("__") else f"{namespace}__{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request."""

    model: str
    system: str = ""
    turns: tuple[Turn, ...] = ()
    tools: tuple[Tool, ...] = ()
    choice: Choice | Tool | None = None
    """A `Tool`: the model must call this tool."""
    parallel: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    effort: str | None = None
    schema: Document | None = None
    """The JSON schema that the answer must have: `{name, schema, strict}`."""
    stream: bool = False
    usage: bool = True
    """Whether a stream reports the tokens. Only Chat Completions can turn this off."""

    @property
    def custom_tools(self) -> frozenset[str]:
        """The names of the tools that take free text."""
        return frozenset(tool.name for tool in self.tools if tool.custom)


@dataclass(slots=True)
class TurnList:
    """Collects turns. Consecutive messages of one side become one turn."""

    _turns: list[tuple[Speaker, list[Part]]] = field(
        default_factory=list[tuple[Speaker, list[Part]]]
    )

    def add(self, role: Speaker, parts: list[Part]) -> None:
        """Add the next message of a side."""
        if self._turns and self._turns[-1][0] == role:
            self._turns[-1][1].extend(parts)
        elif parts:
            self._turns.append((role, list(parts)))

    def turns(self) -> tuple[Turn, ...]:
        """Return the turns so far."""
        return tuple(Turn(role, tuple(parts)) for role, parts in self._turns)


def untranslatable(feature: str) -> RefusedError:
    """Return the refusal of a request that the upstream's wire cannot express."""
    message = f"{feature} cannot be forwarded to this upstream"
    return RefusedError("invalid", 400, message)


def number(value: object) -> float | None:
    """Return `value` if it is a number."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def whole(value: object) -> int | None:
    """Return `value` if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def words(value: object) -> tuple[str, ...]:
    """Return the strings in `value`, which is a string or a list of strings."""
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in items_of(value) if isinstance(item, str))
