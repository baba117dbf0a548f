"""`bench rollout`: show, compare and export rollouts."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from benchflow_contracts import RolloutNode, TrainingOptions, VerifyResult
from benchflow_export import export_formats, exporter_with
from benchflow_kernel import EnvDiff, TableDiff, node_to_json, tree_to_json, value_of
from benchflow_store import (
    NodeView,
    RolloutProgress,
    StateComparison,
    StepLine,
    StoredRollout,
    TrajectoryView,
    compare_states,
    list_evidence,
    step_lines,
    writer_of,
)
from benchflow_store.progress import span
from cyclopts import Parameter
from cyclopts.validators import Number

from . import format as fmt
from .export_flags import ExportFlags, write_and_report
from .flags import DEFAULT_JOBS, JobsDir, Json
from .format import shorten
from .narrate import MARKER, fitting_lines, marker_of
from .output import note, print_json, print_table, stdout, visible
from .rollouts import find_rollout

_ROWS = 20
"""The maximum number of rows of one kind for each table; further rows are counted."""
_TITLE = 60
"""The characters of a step in a comparison."""


def print_diff(diff: EnvDiff) -> None:
    """Print removed, added and changed rows by table, then files by path."""
    if diff.empty:
        note("the two states are equal")
        return
    console = stdout()
    for database, tables in diff.databases.items():
        console.print(f"[bold]{visible(database)}[/bold]")
        for name, table in tables.items():
            counts = f"{table.rows_before} -> {table.rows_after} rows"
            console.print(f"  [cyan]{visible(name)}[/cyan]  {counts}")
            for line in _lines(table):
                console.print(f"    {visible(line)}")
    for sign, paths in (
        ("-", diff.files.removed),
        ("+", diff.files.added),
        ("~", diff.files.changed),
    ):
        for path in paths:
            console.print(f"{sign} {visible(path)}")


def _lines(table: TableDiff) -> Iterator[str]:
    if table.opaque:
        yield "the table is too large to compare: only the numbers of rows are known"
    yield from _capped([f"- {_row(table, row)}" for row in table.removed])
    yield from _capped([f"+ {_row(table, row)}" for row in table.added])
    yield from _capped([f"~ {_change(table, each.before, each.after)}" for each in table.changed])


def _capped(lines: list[str]) -> list[str]:
    left = len(lines) - _ROWS
    return [*lines[:_ROWS], *([f"  … and {left} more"] if left > 0 else [])]


def _row(table: TableDiff, row: tuple[object, ...]) -> str:
    names = table.columns or [f"column {at}" for at in range(1, len(row) + 1)]
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, row, strict=False))


def _change(table: TableDiff, before: tuple[object, ...], after: tuple[object, ...]) -> str:
    cells: list[str] = []
    for name, old, new in zip(table.columns, before, after, strict=True):
        cells.append(f"{name}={old!r}" if old == new else f"{name}: {old!r} -> {new!r}")
    return ", ".join(cells)


def show(
    rollout: str,
    *,
    leaf: str | None = None,
    node: str | None = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Show a trajectory step by step, or one node.

    Examples:
        bench rollout show book-the-room__1f
        bench rollout show book-the-room__1f --leaf n4
        bench rollout show book-the-room__1f --node n3 --json

    Args:
        rollout: Rollout: its directory, its id, or a unique start of its id.
        leaf: Node at the end of the trajectory (default: the first leaf).
        node: Only this node: its V, its credit, its fork, its verdicts and its step.
    """
    stored = _open(find_rollout(rollout, jobs_dir))
    if node is not None:
        _show_node(stored.node(node), as_json=json)
        return
    tree, end = stored.tree, stored.leaf(leaf)
    if json:
        print_json([step.model_dump(mode="json") for step in end.steps])
        return
    _print_trajectory(TrajectoryView.of(tree, end))
    if tree.status == "running":
        _note_progress(stored)


def _show_node(node: RolloutNode, *, as_json: bool) -> None:
    if as_json:
        print_json(node_to_json(node))
        return
    console, view = stdout(), NodeView.of(node)
    facts = [
        f"V {fmt.value(value_of(node))}",
        "" if node.credit is None else fmt.credit(node.credit),
        "" if node.branch is None else fmt.fork(node.branch),
        *(f"{name} {fmt.reward(result.counted().reward)}" for name, result in node.results.items()),
        "" if node.error is None else f"{node.error.boundary}: {node.error.message}",
    ]
    label = f"  {visible(view.label)}" if view.label is not None else ""
    console.print(f"[cyan]{visible(node.id)}[/cyan]{label}")
    for fact in filter(None, facts):
        console.print(visible(fact))
    if node.step is not None:
        _print_lines(step_lines(node.step))


def _note_progress(stored: StoredRollout) -> None:
    """Print what the branches of an unfinished rollout do, or did when it was cut short."""
    progress, process = RolloutProgress.of(stored.log.events), writer_of(stored.directory)
    now, last = time.time(), progress.last_sign or 0.0
    age = f"last event {span(max(0.0, now - last))} ago"
    if process is None:
        note(f"cut short, or running on another host: no process here writes its log, {age}")
    else:
        note(f"running in process {process}, {age}")
    # What was open in a dead rollout does not continue after its last event.
    until = last if process is None else now
    for branch in progress.branches:
        note(f"  {branch.node}  {shorten(branch.text_at(until), 100)}")


def _print_trajectory(view: TrajectoryView) -> None:
    console = stdout()
    for node in view.nodes:
        console.print(f"[cyan]{visible(node.id)}[/cyan]")
        _print_lines(node.lines)
        if node.took_sec:
            console.print(f"  [dim]     took  {fmt.took(node.took_sec)}[/dim]")
    for name, digest in view.images.items():
        note(f"{visible(name)} ran on {visible(digest)}")
    note(f"{view.status}, reward {fmt.reward(view.reward)}  leaf {view.leaf} of {view.leaves}")
    if view.cause is not None:
        note(f"no score from the tests: {view.cause}")
    if view.memory_kills:
        note(f"processes of the agent that the memory limit killed: {view.memory_kills}")
    for error in view.errors:
        note(f"{error.boundary}: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))


def _print_lines(lines: Iterable[StepLine]) -> None:
    console = stdout()
    for line in lines:
        first, *others = fitting_lines(line.text.strip())
        console.print(f"[dim]{marker_of(line):>{MARKER - 2}}[/dim]  {visible(first)}")
        for other in others:
            console.print(" " * MARKER + visible(other))


def tree(
    rollout: str,
    *,
    credit: bool = False,
    depth: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Show a rollout as a tree, with rewards and V(s).

    Examples:
        bench rollout tree book-the-room__1f
        bench rollout tree book-the-room__1f --credit --depth 1

    Args:
        rollout: Rollout: its directory, its id, or a unique start of its id.
        credit: Advantages of each edge: step, process, intra-tree.
        depth: Levels of forks to draw (default: all). Leaves below them are only counted.
    """
    stored_tree = _open(find_rollout(rollout, jobs_dir)).tree
    if json:
        print_json(tree_to_json(stored_tree))
    else:
        # `bench eval` imports this module, and does not need the tree.
        from .treeview import print_tree

        print_tree(stored_tree, credit=credit, depth=depth)


def export(
    rollout: str,
    *,
    output: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    format: str = "verifiers",  # noqa: A002 - the flag's name
    options: ExportFlags = TrainingOptions(),
    follow: bool = False,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    json: Json = False,
) -> None:
    """Export a rollout for a trainer or another engine.

    Examples:
        bench rollout export book-the-room__1f --output dataset.jsonl
        bench rollout export book-the-room__1f --output sft.jsonl --format sft
        bench rollout export book-the-room__1f --output traces.jsonl --format v1-graph
        bench rollout export book-the-room__1f --output all.jsonl --counterfactual
        bench rollout export book-the-room__1f --output harbor-jobs/the-room --format harbor
        bench rollout export book-the-room__1f --follow --format messages --output - | head -1

    Args:
        rollout: Rollout: its directory, its id, or a unique start of its id.
        output: File or directory of the export. An earlier export is replaced; another
            directory is refused.
        format: Format of the export; `bench rollout formats` lists the formats. A format of one
            file is written as that file if --output has its suffix.
        follow: Wait for the end of a running rollout. `--output -` prints each scored leaf at
            once in the format `messages`; other formats of one file are printed at the end.
    """
    stored = StoredRollout(find_rollout(rollout, jobs_dir))
    exporter_with(format, options)
    if follow or output == Path("-"):
        # Only this way of an export needs the module.
        from .export_follow import follow_export

        follow_export(stored.directory, format, output, options, json=json)
        return
    write_and_report(format, [stored.read_finished()], output, options, json=json)


def diff(a: str, b: str, *, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False) -> None:
    """Show the difference between the states of two nodes, of one rollout or of two.

    Examples:
        bench rollout diff book-the-room__1f:n4 n7
        bench rollout diff book-the-room__1f book-the-room__2c

    Args:
        a: First state: ROLLOUT:NODE, or ROLLOUT for its first leaf with a recorded state.
        b: Second state: the same, or another node of the first rollout.
    """
    name, _, node = a.partition(":")
    first = _open(find_rollout(name, jobs_dir))
    if b in first.tree.index:
        comparison = compare_states(first, node, first, b)
    else:
        name, _, other = b.partition(":")
        comparison = compare_states(first, node, _open(find_rollout(name, jobs_dir)), other)
    if json:
        print_json(comparison.model_dump(mode="json"))
    else:
        _print_comparison(comparison)


def _print_comparison(found: StateComparison) -> None:
    a, b = found.a, found.b
    note(f"{a.rollout_id}:{a.node} -> {b.rollout_id}:{b.node}")
    note(f"V {fmt.reward(a.value)} -> {fmt.reward(b.value)}")
    if found.divergence is None:
        note("all steps of the two paths are equal")
    else:
        sides = [f"{side.diverges_at or 'the end'} {shorten(side.step, _TITLE)}" for side in (a, b)]
        after = f"after {found.shared_steps} equal steps"
        note(f"first different step ({found.divergence}), {after}: {' | '.join(sides)}")
    print_diff(found)


def _open(directory: Path) -> StoredRollout:
    stored = StoredRollout(directory)
    if torn := stored.log.torn_bytes:
        note(
            f"the log of {directory.name} ends in an incomplete line of {torn} bytes; it is skipped"
        )
    return stored


def evidence(
    rollout: str, *, node: str | None = None, jobs_dir: JobsDir = DEFAULT_JOBS, json: Json = False
) -> None:
    """Show what verdicts rest on: grading, integrity, and the files of logs and artifacts.

    The files are those of the branch that the node belongs to. Links are not followed.

    Examples:
        bench rollout evidence book-the-room__1f
        bench rollout evidence book-the-room__1f --node n3 --json

    Args:
        rollout: Rollout: its directory, its id, or a unique start of its id.
        node: Node whose verdicts and branch are shown (default: the first leaf).
    """
    stored = _open(find_rollout(rollout, jobs_dir))
    shown = stored.leaf(None) if node is None else stored.node(node)
    directory = stored.directory.resolve()
    listing = list_evidence(directory.parent, [directory.name], shown)
    verdicts = [_verdict(name, result) for name, result in shown.results.items()]
    files = [{"id": each.id, "path": each.text, "size": each.size} for each in listing.files]
    if json:
        found = {"node": shown.id, "world": listing.world, "verdicts": verdicts, "files": files}
        print_json({**found, "hidden": listing.hidden, "refused": listing.refused})
        return
    for each in verdicts:
        grade = each["integrity"] or "not checked"
        reward = fmt.reward(each["reward"])
        note(f"{each['name']}: reward {reward}, grading {each['grading']}, integrity {grade}")
    rows = [(each.text, each.size) for each in listing.files]
    print_table(("file", "bytes"), rows, empty="no files")
    if listing.refused:
        note(f"{listing.refused} links, pipes or devices are not shown")


def _verdict(name: str, result: VerifyResult) -> dict[str, Any]:
    counted = result.counted()
    return {
        "name": name,
        "grading": result.grading,
        "integrity": result.integrity,
        "reward": counted.reward,
        "error": counted.error,
    }


def list_formats(*, json: Json = False) -> None:
    """List the formats of `bench rollout export` and `bench eval export`.

    Examples:
        bench rollout formats
        bench rollout formats --json
    """
    formats = export_formats()
    if json:
        print_json([{"name": each.name, "summary": each.summary} for each in formats])
        return
    rows = [(each.name, each.summary) for each in formats]
    print_table(("format", "summary"), rows, empty="no exporters are installed")
