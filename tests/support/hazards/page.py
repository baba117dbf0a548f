"""Fork every kernel object on both engines, and write `docs/reference/live-objects.md`.

    PYTHONPATH=tests/support ./run python -m hazards.page [--engine ENGINE] [--only TEXT]

Objects that the page calls refused or lost are forked alone, and all others in groups. With
`--engine` or `--only` the other cells of the page stay as they are.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchflow_sandbox_local import LocalProvider

from .changes import CHANGES
from .forks import Outcome, fork_objects
from .in_sandbox.objects import OBJECTS, SECTIONS
from .in_sandbox.server import MISTAKE

PAGE = Path(__file__).parents[3] / "docs/reference/live-objects.md"
ENGINES = {"criu": "CRIU", "runsc": "gVisor"}
VERDICTS = ("carried", "refused", "changes", "absent", "lost")
GROUP, AT_ONCE = 20, 3
MOST_LETTERS = 160

Cells = dict[str, str]
"""What the page says of each object, on one engine."""

HEAD = """# What a live fork carries, object by object

A test program builds each object of the kernel in a sandbox, forks it, forks the child, and checks
the object in the parent, in the child and in the grandchild. This page is what the program found on
Linux {kernel}. `PYTHONPATH=tests/support ./run python -m hazards.page` makes it. A test compares
the page with new forks.

| verdict | meaning |
|---|---|
| carried | the object is the same in all three |
| refused | the snapshot, or the start of a child, fails with the message |
| changes | the object is another one in a child, as [documented][changes] |
| absent | a process of a sandbox cannot make the object; the answer of the kernel |
| lost | the object changes and nothing says so: a fault of BenchFlow |

{counts}

[changes]: live-hazards.md#what-changes-in-a-fork
"""


def cell_of(engine: str, name: str, outcome: Outcome) -> str:
    """Return what the page says of an outcome."""
    if outcome.verdict == "lost" and name in CHANGES[engine]:
        return "changes"
    if not outcome.reason:
        return outcome.verdict
    return f"{outcome.verdict}: {stable(outcome.reason)}"


def stable(reason: str) -> str:
    """Return a message without what differs from run to run."""
    text = reason.replace("the sandbox cannot be dumped: ", "").replace("dump: [Errno 5] ", "")
    text = re.sub(r"cannot snapshot '[^']*': ", "", text)
    text = re.sub(r"\b(0x)?[0-9a-f]*\d{3,}[0-9a-f]*\b", "N", text)
    text = re.sub(r"\b(pid|process|for|socket|fd=|mount=|file)( ?)\d+", r"\1\2N", text)
    text = text.split("; (criu/cr-")[0].replace("\n", " ")
    text = text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS].rstrip()}..."
    return re.sub(r"([|<>*_`\[\]])", r"\\\1", text)


def verdict_of(cell: str) -> str:
    """Return the verdict in a cell."""
    return cell.partition(":")[0]


def read_page(text: str) -> dict[str, Cells]:
    """Return what a page says, by engine."""
    rows = re.findall(r"^\| (.+?) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    found: dict[str, Cells] = {engine: {} for engine in ENGINES}
    for name, *cells in rows:
        if name in OBJECTS:
            for engine, cell in zip(ENGINES, cells, strict=True):
                if cell:
                    found[engine][name] = cell
    return found


def write_page(found: Mapping[str, Cells], kernel: str) -> str:
    """Return the page."""
    lines = [HEAD.format(kernel=kernel, counts=_counts(found)).rstrip()]
    for title in SECTIONS:
        lines += ["", f"## {title}", "", f"| object | {' | '.join(ENGINES.values())} |"]
        lines += ["|---|---|---|"]
        for name, each in OBJECTS.items():
            if each.section == title:
                cells = " | ".join(found[engine].get(name, "") for engine in ENGINES)
                lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


def _counts(found: Mapping[str, Cells]) -> str:
    lines = [f"| engine | objects | {' | '.join(VERDICTS)} |", "|---" * 7 + "|"]
    for engine, title in ENGINES.items():
        counts = Counter(verdict_of(cell) for cell in found[engine].values())
        numbers = " | ".join(str(counts[verdict]) for verdict in VERDICTS)
        lines.append(f"| {title} | {len(found[engine])} | {numbers} |")
    return "\n".join(lines)


def groups_of(names: Sequence[str], known: Mapping[str, str]) -> list[list[str]]:
    """Return what to fork together: what the page says to fail is forked alone."""
    alone = {"refused", "lost"}
    steady = [name for name in names if verdict_of(known.get(name, "")) not in alone]
    grouped = [steady[start : start + GROUP] for start in range(0, len(steady), GROUP)]
    return grouped + [[name] for name in names if name not in steady]


async def try_objects(
    engine: str,
    names: Sequence[str],
    known: Mapping[str, str],
    on_cells: Callable[[Cells], None] = lambda _: None,
) -> Cells:
    """Fork objects on one engine, some groups at a time; return what the page says of each.

    What is `known` of them says which to fork alone. `on_cells` gets those of each group.
    """
    cells: Cells = {}
    room = asyncio.Semaphore(AT_ONCE)

    async def one(provider: LocalProvider, group: list[str]) -> None:
        async with room:
            found = await fork_objects(provider, group, CHANGES[engine])
        new = {name: cell_of(engine, name, found[name]) for name in group}
        cells.update(new)
        on_cells(new)

    with tempfile.TemporaryDirectory(prefix="hazards-") as store:
        async with (
            LocalProvider(store=Path(store), engine=engine) as provider,
            asyncio.TaskGroup() as tasks,
        ):
            for group in groups_of(names, known):
                tasks.create_task(one(provider, group))
    return cells


def _is_asked(name: str, found: Mapping[str, Cells], parts: Sequence[str]) -> bool:
    cells = " ".join(cells.get(name, "") for cells in found.values())
    text = f"{name} {OBJECTS[name].section} {cells}".lower()
    return any(part.lower() in text for part in parts)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument(
        "--only", action="append", help="a part of the object's, the section's or the cells' text"
    )
    asked = parser.parse_args()
    page = PAGE.read_text() if PAGE.exists() else ""
    found = read_page(page)
    names = [name for name in OBJECTS if _is_asked(name, found, asked.only or [""])]
    kernel = Path("/proc/sys/kernel/osrelease").read_text().partition("-")[0].strip()

    def write(engine: str, cells: Cells) -> None:
        found[engine] |= cells
        PAGE.write_text(write_page(found, kernel))

    for engine in asked.engine or ENGINES:
        asyncio.run(try_objects(engine, names, dict(found[engine]), partial(write, engine)))
    wrong = [
        f"{engine}: {name}: {cell}"
        for engine in ENGINES
        for name, cell in found[engine].items()
        if verdict_of(cell) == "lost" or MISTAKE in cell
    ]
    sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
