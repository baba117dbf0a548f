"""What the engine prints while it builds."""

import logging
import re
from collections import deque
from collections.abc import Mapping
from typing import Any

from benchflow_contracts.errors import SandboxError

from .dockerfile import instructions

_log = logging.getLogger(__name__)
_LINES, _SHOWN = 30, 3000
_STEP = re.compile(r"Step (\d+)/\d+ : (.*)", re.DOTALL)
_PARSING = re.compile(r"parse error (?:on )?line (\d+)", re.IGNORECASE)


class BuildOutput:
    """Keeps the last lines of one build, and where it is in its Dockerfile."""

    def __init__(self, name: str, dockerfile: str, tag: str) -> None:
        self._name = name
        self._lines = [each.line for each in instructions(dockerfile)]
        self._tag = tag
        self._tail: deque[str] = deque(maxlen=_LINES)
        self._step = 0
        self._instruction = ""

    def take(self, event: Mapping[str, Any]) -> None:
        """Note one message of the engine; raise `SandboxError` when it is a failure."""
        if "error" in event:
            raise self.failed(str(event["error"]))
        text = str(event.get("stream") or event.get("status") or "").rstrip("\n")
        step = _STEP.fullmatch(text)
        if step is not None:
            self._step, self._instruction = int(step[1]), step[2]
            self._tail.clear()
            _log.info("building %s: %s", self._tag, text)
        elif text:
            self._tail.append(text[:_SHOWN])
            _log.debug("building %s: %s", self._tag, text)

    @property
    def where(self) -> str:
        """The instruction that is under way, as `Dockerfile:line`."""
        known = 0 < self._step <= len(self._lines)
        return f"{self._name}:{self._lines[self._step - 1]}" if known else self._name

    @property
    def shown(self) -> str:
        """The instruction that is under way, and the last of what it printed."""
        said = "\n".join(self._tail)[-_SHOWN:]
        return "".join(f"\n{part}" for part in (self._instruction[:_SHOWN], said) if part)

    def failed(self, why: str) -> SandboxError:
        """Return the error of a build that the engine gave up."""
        parsing = _PARSING.search(why)
        where = f"{self._name}:{parsing[1]}" if parsing and not self._step else self.where
        hint = "`docker build` of the same directory shows all of it"
        if "buildkit" in why.lower() or "--mount" in why:
            hint = "the engine builds without BuildKit: build it with `docker buildx build`, and "
            hint += "let the task name the image"
        return SandboxError(f"the image cannot be built: {why}{self.shown}", where=where, hint=hint)
