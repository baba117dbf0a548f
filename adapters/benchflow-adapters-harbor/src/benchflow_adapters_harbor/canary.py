"""Remove canary lines from prompts. Benchmarks have them to stay out of training data."""


def without_canary(text: str) -> str:
    """Return `text` without its leading canary lines and the blank lines after them."""
    lines = text.split("\n")
    first = 0
    while first < len(lines) and _is_canary(lines[first].strip()):
        first += 1
    while first < len(lines) and not lines[first].strip():
        first += 1
    return "\n".join(lines[first:])


def _is_canary(line: str) -> bool:
    comment = line.startswith("#") or (line.startswith("<!--") and line.endswith("-->"))
    return comment and "canary" in line.lower()
