"""What the engine prints while it builds."""

import logging
import re
from collections import deque
from collections.abc import Mapping
from typing import Any

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.recipe.dockerfile import Dockerfile

from .trace import Log, Vertex, read_trace

_log = logging.getLogger(__name__)
_LINES, _SHOWN = 30, 3000
_VERTEX = re.compile(r"\[(?:(\S+) +)?(\d+)/\d+\] (.*)", re.DOTALL)
_TRACE = "moby.buildkit.trace"
_COUNTED = {"RUN", "COPY", "ADD", "WORKDIR"}
_PARSING = re.compile(r"parse error (?:on )?line (\d+)", re.IGNORECASE)


class BuildOutput:
    """Keeps the last lines of one build, and where it is in its Dockerfile."""

    def __init__(self, name: str, file: Dockerfile, tag: str) -> None:
        self._name = name
        self._file = file
        self._tag = tag
        self._tail: deque[str] = deque(maxlen=_LINES)
        self._vertex = ""
        self._line = 0
        self._instruction = ""

    def take(self, event: Mapping[str, Any]) -> None:
        """Note one message of the engine; raise `SandboxError` when it is a failure."""
        if "error" in event:
            raise self.failed(str(event["error"]))
        if event.get("id") == _TRACE:
            for told in read_trace(str(event.get("aux"))):
                self._trace(told)

    def _trace(self, told: Vertex | Log) -> None:
        if isinstance(told, Log):
            # BuildKit does several things at once: what another prints is not this one's.
            if told.digest == self._vertex:
                self._print(told.text.rstrip("\n"))
            return
        named = _VERTEX.fullmatch(told.name)
        if named is not None and told.started and told.digest != self._vertex:
            self._vertex = told.digest
            self._begin(self._line_of(named[1] or "", int(named[2])), named[3])

    def _line_of(self, stage: str, number: int) -> int:
        """Return the line of a stage's step, counted as BuildKit's frontend does."""
        lines, names, count = list[int](), set[str](), 0
        for one in self._file.instructions:
            if one.name == "FROM":
                if lines and stage in names:
                    break
                words = one.text.lower().split()
                earlier = words[0] in names or words[0] == "scratch"
                lines, count = ([] if earlier else [one.line]), count + 1
                names = {f"stage-{count - 1}", *words[2:3]}
            elif one.name in _COUNTED:
                lines.append(one.line)
        return lines[number - 1] if 0 < number <= len(lines) else 0

    def _begin(self, line: int, instruction: str) -> None:
        self._line, self._instruction = line, instruction
        self._tail.clear()
        _log.info("building %s: %s", self._tag, instruction)

    def _print(self, text: str) -> None:
        self._tail.append(text[:_SHOWN])
        _log.debug("building %s: %s", self._tag, text)

    @property
    def where(self) -> str:
        """The instruction that is under way, as `Dockerfile:line`."""
        return f"{self._name}:{self._line}" if self._line else self._name

    @property
    def shown(self) -> str:
        """The instruction that is under way, and the last of what it printed."""
        said = "\n".join(self._tail)[-_SHOWN:]
        return "".join(f"\n{part}" for part in (self._instruction[:_SHOWN], said) if part)

    def failed(self, why: str) -> SandboxError:
        """Return the error of a build that the engine gave up."""
        parsing = _PARSING.search(why)
        where = f"{self._name}:{parsing[1]}" if parsing and not self._line else self.where
        unknown = "unknown flag" in why.lower() or "unknown instruction" in why.lower()
        hint = (
            "the engine's own BuildKit may be older than what the file asks for: leave it out, or"
            " build the image elsewhere and let the task name it"
            if unknown
            else "`docker build` of the same directory shows all of it"
        )
        return SandboxError(f"the image cannot be built: {why}{self.shown}", where=where, hint=hint)
