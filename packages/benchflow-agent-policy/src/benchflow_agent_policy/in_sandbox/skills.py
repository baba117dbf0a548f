"""The skills in the agent's home: their names go into the system prompt."""

import re
from pathlib import Path

_FIELD = re.compile(r"^(name|description):[ \t]*(.+)$", re.MULTILINE)
_SKILLS = 64
_HEAD_CHARS = 4096


def skills_prompt(directory: Path) -> str:
    """Return a paragraph that names every skill, or nothing when there is none."""
    lines: list[str] = []
    for path in sorted(directory.glob("*/SKILL.md"))[:_SKILLS]:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD_CHARS)
        fields = dict(_FIELD.findall(head))
        name = fields.get("name", path.parent.name).strip()
        lines.append(f"- {name}: {fields.get('description', '').strip()} ({path})")
    if not lines:
        return ""
    return "\n\nYou have skills. Read the file of one before you use it.\n" + "\n".join(lines)
