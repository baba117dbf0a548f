"""The Python blocks of a guide that needs a foreign package, for the program that has it."""

import re
from pathlib import Path
from typing import Any

GUIDES = Path(__file__).parents[2] / "docs/guides"
_BLOCK = re.compile(
    r"<!-- not run: it needs [^;>]+; tests/foreign/[^>]+ runs it -->\n```python\n(.*?)```\n",
    re.DOTALL,
)


def run_guide(name: str, **replaced: str) -> dict[str, Any]:
    """Run the blocks of a page that say so, in order; return their variables.

    Each value of `replaced` stands for the text that has its name in the page.
    """
    blocks = _BLOCK.findall((GUIDES / name).read_text())
    assert blocks, f"no block of {name} says that a foreign test runs it"
    code = "\n".join(blocks)
    for old, new in replaced.items():
        code = code.replace(old, new)
    names: dict[str, Any] = {}
    exec(compile(code, name, "exec"), names)
    return names
