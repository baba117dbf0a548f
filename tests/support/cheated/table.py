"""Try every cheat in every design on both sandboxes, and write the table of what they earned.


    PYTHONPATH=tests/support ./run python -m cheated.table RESULTS [--only PATTERN] [--page PAGE]

Each design on each sandbox is a file of RESULTS, and one that is there is not run again. The page
is `docs/reference/cheating.md`, between its marks.
"""

import argparse
import asyncio
import itertools
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from benchflow_contracts import Model, SandboxProvider, Task
from benchflow_engine.cheating import CheatOutcome, try_cheats
from benchflow_engine.rollout import run_in
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider

from . import options
from .corpus import CHANGES, aimed, honest, task

BEGIN, END = "<!-- the table of cheats: begin -->", "<!-- the table of cheats: end -->"
PROTOCOLS, MODES = ("benchflow", "harbor"), ("hermetic", "twin", "shared")
SANDBOXES = ("local", "docker")
KINDS = ("0", "no score", "tampered", "suspicious", "unflagged")


class Tried(Model):
    """What came of one task in one design."""

    task: str
    oracle: float | None
    nop: float | None
    honest: tuple[CheatOutcome, ...]
    cheats: tuple[CheatOutcome, ...]


class Cell(Model):
    """One design on one sandbox."""

    protocol: str
    mode: str
    sandbox: str
    tasks: tuple[Tried, ...]

    @property
    def outcomes(self) -> list[CheatOutcome]:
        """Return what every cheat got."""
        return [each for one in self.tasks for each in one.cheats]


def kind(outcome: CheatOutcome) -> str:
    """Return the column of an outcome."""
    if outcome.verdict == "untried":
        return "untried"
    if outcome.verdict == "stopped":
        return "no score" if outcome.reward is None else "0"
    return outcome.integrity if outcome.integrity in KINDS else "unflagged"


def provider(sandbox: str, store: Path, image: str) -> SandboxProvider:
    """Return a sandbox provider of its own."""
    if sandbox == "local":
        return LocalProvider(store=store)
    return DockerProvider(image=image, store=store)


async def try_cell(
    protocol: str, mode: str, sandbox: str, image: str, names: Iterable[str] = CHANGES
) -> Cell:
    """Try all that is aimed at each task, and its honest work."""
    tasks: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="cheats-") as place:
        for name in names:
            made = task(name, protocol, mode, Path(place) / name, image)
            async with provider(sandbox, Path(place) / f"store-{name}", image) as boxes:
                tasks.append(await _try(boxes, made, name, mode))
    return Cell(protocol=protocol, mode=mode, sandbox=sandbox, tasks=tuple(tasks))


async def _try(boxes: SandboxProvider, made: Task, name: str, mode: str) -> Tried:
    earned = {}
    for agent in ("oracle", "nop"):
        earned[agent] = (await run_in(boxes, made, options(boxes, mode, agent))).reward
    asked = options(boxes, mode)
    return Tried(
        task=name,
        **earned,
        honest=tuple(await try_cheats(boxes, made, asked, honest(name))),
        cheats=tuple(await try_cheats(boxes, made, asked, aimed(name))),
    )


def table(cells: Sequence[Cell]) -> str:
    """Return the table in Markdown, and what no cell may have below it."""
    head = "| tests | isolation | sandbox | cheats | 0 | no score | tampered | suspicious "
    lines = [head + "| unflagged | oracle | nop | honest work |", "|---" * 12 + "|"]
    for cell in cells:
        counts = Counter(map(kind, cell.outcomes))
        lines.append(
            f"| {_NAMES[cell.protocol]} | {cell.mode} | {cell.sandbox} | {len(cell.outcomes)} | "
            + " | ".join(str(counts[each]) for each in KINDS)
            + f" | {_all(one.oracle for one in cell.tasks)} | {_all(one.nop for one in cell.tasks)}"
            + f" | {_honest(cell)} |"
        )
    return "\n".join([*lines, "", *_unflagged(cells)])


_NAMES = {"benchflow": "ours", "harbor": "Harbor's"}


def _all(rewards: Iterable[float | None]) -> str:
    return ", ".join(sorted({"none" if each is None else f"{each:g}" for each in rewards}))


def _honest(cell: Cell) -> str:
    found = Counter(
        f"{'none' if each.reward is None else f'{each.reward:g}'} {each.integrity or 'no report'}"
        for one in cell.tasks
        for each in one.honest
    )
    return ", ".join(f"{count} x {what}" for what, count in sorted(found.items()))


def _unflagged(cells: Sequence[Cell]) -> list[str]:
    won = sorted({each.cheat for c in cells for each in c.outcomes if kind(each) == "unflagged"})
    return [f"Unflagged: {', '.join(f'`{name}`' for name in won) or 'none'}."]


def put_into(page: Path, text: str) -> None:
    """Replace what is between the marks of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="*", help="designs to run, such as 'harbor-twin-*'")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    asked.results.mkdir(parents=True, exist_ok=True)
    cells: list[Cell] = []
    for parts in itertools.product(PROTOCOLS, MODES, SANDBOXES):
        name = "-".join(parts)
        file = asked.results / f"{name}.json"
        if not file.exists() and fnmatchcase(name, asked.only):
            cell = asyncio.run(try_cell(*parts, os.environ["BENCHFLOW_DOCKER_IMAGE"]))
            file.write_text(cell.model_dump_json(indent=1))
        if file.exists():
            cells.append(Cell.model_validate(json.loads(file.read_text())))
    print(text := table(cells))
    if asked.page is not None:
        put_into(asked.page, text)


if __name__ == "__main__":
    main()
