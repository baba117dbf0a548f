"""What we read of a Dockerfile. The engine interprets it."""

import re
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)\s*", re.ASCII)
_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with the lines that go on from it."""

    line: int
    """Of its first word, from 1."""
    text: str


def instructions(text: str) -> list[Instruction]:
    """Split a Dockerfile as the engine's own builder counts its steps.

    Source: docs.docker.com/reference/dockerfile, "Format" and "Parser directives".
    """
    found: list[Instruction] = []
    escape, directives, going_on = "\\", True, False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        directive = _DIRECTIVE.fullmatch(line) if directives else None
        if directive is not None and directive[1].lower() == "escape":
            escape = directive[2]
        directives = directives and directive is not None
        if not line or line.startswith("#"):
            continue  # also between lines that go on
        part = line.removesuffix(escape)
        if going_on:
            found[-1] = Instruction(found[-1].line, f"{found[-1].text} {part}")
        else:
            found.append(Instruction(number, part))
        going_on = part != line
    return found


def bases(text: str) -> list[str]:
    """Return the images that it is made from, without stages, `scratch`, and arguments."""
    found: list[str] = []
    stages = {"scratch"}
    for instruction in instructions(text):
        match = _FROM.fullmatch(instruction.text.strip())
        if match is None:
            continue
        if match[1].lower() not in stages and "$" not in match[1] and match[1] not in found:
            found.append(match[1])
        stages.add((match[2] or "").lower())
    return found
