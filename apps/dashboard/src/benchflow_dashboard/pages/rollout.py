"""The page of one rollout: `/r/{rollout}`."""

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Final
from urllib.parse import parse_qsl, quote

from benchflow_contracts import RolloutNode, StoreError, UsageError
from benchflow_store import read_groups
from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import ClientException
from litestar.params import FromPath
from litestar.response import Redirect, Template

from benchflow_dashboard.actions.branches import BranchSource, node_actions
from benchflow_dashboard.index import Index, RolloutEntry, RunQuery, read_neighbours
from benchflow_dashboard.live.log_tail import rollout_stamp
from benchflow_dashboard.notes.queries import read_annotations
from benchflow_dashboard.notes.store import NotesStore
from benchflow_dashboard.rollouts import LoadedRollout, RolloutCache
from benchflow_dashboard.settings import DashboardSettings
from benchflow_dashboard.tree.cache import TreeCache
from benchflow_dashboard.tree.evidence_files import EvidenceFiles, evidence_files, place_of
from benchflow_dashboard.tree.query import PARTS, TABS, RolloutQuery, Tab
from benchflow_dashboard.tree.rollout_page import ListPlace, RolloutPage

from .page import LivePage, PageRequest, find_one, jobs_dir_words, render

MODE_NAMES: Final = (
    ("value", "V"),
    ("advantage", "advantage"),
    ("cost", "cost"),
    ("time", "time"),
)
_RUNNING_SEC: Final = 5
_RECENT_SEC: Final = 60


def _recorded_facts(entry: RolloutEntry) -> tuple[tuple[str, object], ...]:
    """Return what the record of a job has of a rollout without files. `None` is unknown."""
    return (
        ("slot", entry.slot),
        ("attempt", entry.attempt),
        ("agent", entry.agent),
        ("model", entry.model),
        ("sandbox", entry.sandbox),
        ("failed at", entry.boundary),
        ("grading", entry.grading),
        ("integrity", entry.integrity),
        ("steps", entry.steps),
        ("leaves", entry.leaves),
        ("scored leaves", entry.scored),
        ("forks", entry.branches),
        ("questions", entry.asks),
        ("tokens in", entry.tokens_in),
        ("tokens out", entry.tokens_out),
        ("cost", entry.cost),
        ("seconds", None if entry.seconds is None else round(entry.seconds, 1)),
    )


@get("/r/{rollout:str}", include_in_schema=False, sync_to_thread=True)
def show_rollout(
    request: PageRequest,
    index: NamedDependency[Index],
    rollouts: NamedDependency[RolloutCache],
    trees: NamedDependency[TreeCache],
    settings: NamedDependency[DashboardSettings],
    notes: NamedDependency[NotesStore],
    rollout: FromPath[str],
) -> Template | Redirect:
    """Show one rollout: its tree, and the pane of the selected node."""
    entry = find_one(index, rollout)
    if entry.id != rollout:
        return Redirect(rollout_url(entry.id, request.url.query))
    loaded = load_rollout(rollouts, entry)
    if loaded is None:
        cli = ("bench", "rollout", "show", entry.id, *jobs_dir_words(settings))
        return render(
            request,
            "rollout_summary.html",
            entry,
            title=entry.id,
            section="runs",
            cli=cli,
            context={
                "live": LivePage("runs"),
                "facts": _recorded_facts(entry),
                "groups": group_leaves(entry, None),
            },
        )
    query = RolloutQuery.of(request.query_params)
    with index.read() as session:
        annotations = read_annotations(session, entry.id)
    place, shown = list_place(index, entry, query), request.headers.get("live-drawing")
    view = RolloutPage.of(loaded, query, trees, place, shown=shown)
    return render(
        request,
        "rollout.html",
        view,
        title=entry.id,
        section="runs",
        cli=("bench", "rollout", "tree", entry.id, "--credit", *jobs_dir_words(settings)),
        fragment="rollout_pane.html",
        context={
            "live": live_page(entry.id, loaded, is_running=bool(view.liveness)),
            "groups": group_leaves(entry, loaded),
            "modes": MODE_NAMES,
            "tabs": TABS,
            "part_kinds": PARTS,
            "node_cli": node_command(entry.id, view.pane.node.id, settings, view.query.tab),
            "node_actions": node_actions(
                BranchSource.of(entry, loaded.stored.tree, view.facts), view.pane.node
            ),
            "act_url": f"{rollout_url(entry.id)}/act",
            "annotations": annotations,
            "notes_problem": notes.problem,
            "notes_cli": notes_command(entry.id, settings),
            "evidence_files": _evidence(entry, view, settings),
        },
    )


@dataclass(frozen=True, slots=True)
class GroupLeaf:
    """What a group reward says of one leaf, beside the leaf's own reward."""

    leaf: str
    name: str
    own: float | None
    given: float | None
    reason: str | None = None
    has_node: bool = False
    """Whether the page draws the leaf."""


@dataclass(frozen=True, slots=True)
class GroupLeaves:
    """The verdicts of the job's group rewards on a rollout."""

    rows: tuple[GroupLeaf, ...] = ()
    problem: str | None = None
    """Why the verdicts cannot be read."""

    @property
    def means(self) -> Mapping[str, tuple[float | None, int, int]]:
        """For each group reward: the mean, the leaves that it is over, and all leaves."""
        found: dict[str, list[float | None]] = {}
        for row in self.rows:
            found.setdefault(row.name, []).append(row.given)
        numbers = {name: [n for n in given if n is not None] for name, given in found.items()}
        return {
            name: (fmean(some) if some else None, len(some), len(found[name]))
            for name, some in numbers.items()
        }


def group_leaves(entry: RolloutEntry, loaded: LoadedRollout | None) -> GroupLeaves:
    """Return the verdicts of the job's group rewards on a rollout."""
    try:
        groups = read_groups(entry.directory.parent)
    except StoreError as error:
        return GroupLeaves(problem=str(error))
    nodes: Mapping[str, RolloutNode] = {} if loaded is None else loaded.stored.tree.index

    def row(leaf: str | None, name: str, given: float | None, reason: str | None) -> GroupLeaf:
        node = nodes.get(leaf or "")
        own = None if node is None else node.reward
        return GroupLeaf(leaf or "-", name, own, given, reason, node is not None)

    rows: list[GroupLeaf] = []
    for group in groups:
        for each in group.leaves:
            if each.rollout == entry.id:
                counted = each.result.counted()
                rows.append(row(each.leaf, group.reward, counted.reward, counted.error))
        rows += [
            row(lost.leaf, group.reward, None, f"not seen: {lost.reason}")
            for lost in group.lost
            if lost.name == entry.id
        ]
    return GroupLeaves(tuple(rows))


def live_page(
    rollout: str, loaded: LoadedRollout, topic: str = "", *, is_running: bool = False
) -> LivePage:
    """Return what keeps a page of a rollout up to date."""
    # The list of runs, which the page shows a place of, follows the end of a rollout later.
    is_recent = time.time() - loaded.signature[1][1] / 1e9 < _RECENT_SEC
    return LivePage(
        topic,
        rollout=rollout,
        seq=loaded.seq,
        stamp=rollout_stamp(*loaded.signature),
        refresh_sec=_RUNNING_SEC if is_running or is_recent else 0,
    )


def _evidence(
    entry: RolloutEntry, view: RolloutPage, settings: DashboardSettings
) -> EvidenceFiles | None:
    if view.evidence is None:
        return None
    place = place_of(entry.job, entry.id)
    return evidence_files(settings.jobs_dir, place, view.pane.node, view.query)


def load_rollout(rollouts: RolloutCache, entry: RolloutEntry) -> LoadedRollout | None:
    """Return the rollout; `None` if it has no event yet, or was refused before it began.

    Raises:
        ClientException: The log is damaged. The status is 422.
    """
    try:
        loaded = rollouts.load(entry.directory)
    except StoreError as error:
        if not (entry.directory / "events.jsonl").exists():
            return None
        raise ClientException(f"cannot read the log: {error}", status_code=422) from error
    return loaded if loaded.seq >= 0 else None


def rollout_url(rollout: str, query: str = "") -> str:
    """Return the URL of a rollout's page."""
    path = f"/r/{quote(rollout, safe='')}"
    return f"{path}?{query}" if query else path


def node_command(rollout: str, node: str, settings: DashboardSettings, tab: Tab = "steps") -> str:
    """Return the command that prints the data of a node's pane."""
    command = "evidence" if tab == "evidence" else "show"
    words = ("bench", "rollout", command, rollout, "--node", node, *jobs_dir_words(settings))
    return shlex.join(words)


def notes_command(rollout: str, settings: DashboardSettings) -> str:
    """Return the command that prints the labels and notes of a rollout."""
    return shlex.join(("bench", "dashboard", "notes", rollout, *jobs_dir_words(settings)))


def list_place(index: Index, entry: RolloutEntry, query: RolloutQuery) -> ListPlace | None:
    """Return the rollouts before and after this one in the list that the reader came from."""
    try:
        runs = RunQuery.of(dict(parse_qsl(query.listed)))
    except UsageError:
        return None
    with index.read() as session:
        found = read_neighbours(session, runs, entry.key)
    if found is None:
        return None
    # A mark of this rollout goes with the reader to the next one.
    mark = query.a if query.a is None or ":" in query.a else f"{entry.id}:{query.a}"
    there = query.url(sel=None, a=mark, opened=(), closed=(), page=0, full=False).removeprefix("?")
    return ListPlace(
        place=found.place,
        total=found.total,
        previous_url=None if found.previous is None else rollout_url(found.previous, there),
        next_url=None if found.next is None else rollout_url(found.next, there),
        list_url=f"/runs?{runs.url_query()}",
    )
