"""Check what a foreign world sends. It is not trusted."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from benchflow_contracts import EnvironmentError_, RewardEvent

from .client import ImageBlock, WorldAnswer, WorldTool
from .limits import WorldLimits

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MIME = re.compile(r"image/[a-z0-9.+-]{1,64}")
_IMAGE_CHARS: Final = 8 << 20
_SCHEMA_CHARS: Final = 1 << 16
_DESCRIPTION_CHARS: Final = 1 << 14
_PARTS: Final = 64


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """An answer within the limits."""

    blocks: tuple[str | ImageBlock, ...]
    rewards: tuple[RewardEvent, ...]
    finished: bool
    failed: bool
    invalid_reward: str | None = None
    """Why a reward cannot be counted."""

    @property
    def text(self) -> str:
        """The texts, and a mark for each image."""
        return "\n".join(b if isinstance(b, str) else f"[{b.mime_type}]" for b in self.blocks)

    @property
    def digest(self) -> str:
        """The digest of everything that a repetition must give again."""
        blocks = [b if isinstance(b, str) else [b.mime_type, b.data] for b in self.blocks]
        rewards = [[event.tag, event.value] for event in self.rewards]
        invalid = self.invalid_reward is not None
        return digest_of([blocks, rewards, self.finished, self.failed, invalid])


def digest_of(value: object) -> str:
    """Return the digest of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def check_answer(answer: object, source: str, limits: WorldLimits) -> CheckedAnswer:
    """Return the answer within the limits.

    Raises:
        EnvironmentError_: The client returned something else than an answer.
    """
    if not isinstance(answer, WorldAnswer):
        raise EnvironmentError_(
            f"the client of world {source!r} returned {type(answer).__name__}, not a WorldAnswer"
        )
    rewards: list[RewardEvent] = []
    invalid: str | None = None
    named: list[tuple[str | None, object]] = [(None, answer.reward)]
    named += list(answer.parts.items())[:_PARTS]
    for tag, value in named:
        if value is None:
            continue
        number = _finite(value)
        if number is None:
            invalid = f"world {source!r} sent the reward {value!r:.80}, not a finite number"
            continue
        cut = None if tag is None else _plain(str(tag))[:100]
        rewards.append(
            RewardEvent(
                source=source, value=number, space=answer.space, granularity="step", tag=cut
            )
        )
    return CheckedAnswer(
        blocks=_blocks(answer.content, limits),
        rewards=tuple(rewards),
        finished=bool(answer.finished),
        failed=bool(answer.failed),
        invalid_reward=invalid,
    )


def check_tools(tools: Sequence[WorldTool], source: str, limits: WorldLimits) -> list[WorldTool]:
    """Return the tools of a world.

    Raises:
        EnvironmentError_: There are too many, a name is invalid or there twice, or a schema is not
            a JSON object.
    """
    if len(tools) > limits.tools:
        raise EnvironmentError_(f"world {source!r} has {len(tools)} tools, over {limits.tools}")
    checked: dict[str, WorldTool] = {}
    for tool in tools:
        if not _NAME.fullmatch(tool.name):
            raise EnvironmentError_(f"world {source!r} has a tool with the name {tool.name!r:.80}")
        if tool.name in checked:
            raise EnvironmentError_(f"world {source!r} has two tools named {tool.name!r}")
        description = _plain(tool.description)[:_DESCRIPTION_CHARS]
        checked[tool.name] = WorldTool(tool.name, description, _schema(tool, source))
    return list(checked.values())


def _schema(tool: WorldTool, source: str) -> Mapping[str, Any]:
    try:
        text = json.dumps(dict(tool.input_schema), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvironmentError_(
            f"the schema of tool {tool.name!r} of world {source!r} is not JSON: {error!s:.80}"
        ) from error
    if len(text) > _SCHEMA_CHARS:
        raise EnvironmentError_(f"the schema of tool {tool.name!r} of world {source!r} is too long")
    return {**cast("dict[str, Any]", json.loads(text)), "type": "object"}


def _blocks(
    content: str | Sequence[str | ImageBlock], limits: WorldLimits
) -> tuple[str | ImageBlock, ...]:
    blocks: list[str | ImageBlock] = []
    space, images = limits.result_chars, limits.images
    for block in (content,) if isinstance(content, str) else content:
        if isinstance(block, ImageBlock):
            images -= 1
            if images >= 0 and len(block.data) <= _IMAGE_CHARS and _MIME.fullmatch(block.mime_type):
                blocks.append(block)
            else:
                blocks.append("[an image was left out]")
        elif space > 0:
            text = _plain(block)
            cut = len(text) - space
            blocks.append(text if cut <= 0 else f"{text[:space]}\n[{cut} characters were cut]")
            space -= len(text)
    return tuple(blocks)


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _plain(text: str) -> str:
    """Return text that can be encoded."""
    return str(text).encode("utf-8", "replace").decode()
