"""The page of one rollout: its head, its tree, and the pane of the selected node."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict
from urllib.parse import quote

from benchflow_contracts import RolloutNode, RolloutRecord, StoreError
from benchflow_store import StoredRollout, writer_of
from benchflow_store.progress import span

from benchflow_dashboard.page_time import page_time
from benchflow_dashboard.rollouts import LoadedRollout

from .cache import DrawingChoices, DrawnTree, TreeCache, recorded_calls
from .facts import TreeFacts
from .measure import signed
from .node_pane import NodePane, title_of
from .query import RolloutQuery
from .step_parts import StepPart, step_parts
from .svg import SvgText
from .tabs import CostTab, EventsTab, EvidenceTab, RewardTab

_PATH = 200
"""The maximum number of earlier steps in the list of a path."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A link to a node, and why one would go there."""

    name: str
    words: str
    url: str


@dataclass(frozen=True, slots=True)
class FoldLink:
    """The link that folds or unfolds the tree below a node."""

    words: str
    url: str


@dataclass(frozen=True, slots=True)
class RunningBranch:
    """What one open branch does."""

    node: str
    """The last node of the branch."""
    text: str
    """Such as `thinking for 4.0 min`."""
    url: str


class _Activity(TypedDict):
    now: Sequence[RunningBranch]
    liveness: str


@dataclass(frozen=True, slots=True)
class PathStep:
    """One earlier step on the path to the selected node."""

    number: int
    node: str
    title: str
    url: str


@dataclass(frozen=True, slots=True)
class ListPlace:
    """The place of the rollout in the list that the reader came from."""

    place: int
    total: int
    previous_url: str | None
    next_url: str | None
    list_url: str


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """Everything that the page of a rollout shows."""

    id: str
    task: str
    status: str
    reason: str
    """Why the rollout has no reward; empty if it has one, or still runs."""
    now: Sequence[RunningBranch]
    """What each open branch of a running rollout does."""
    liveness: str
    """Whether a process writes the log of an unfinished rollout, and when it wrote last."""
    query: RolloutQuery
    facts: TreeFacts
    drawn: DrawnTree
    svg: SvgText
    has_unseen: bool
    """Whether the browser has the list of texts that are not drawn."""
    root: str
    nodes: int
    events: int
    record: RolloutRecord | None
    pane: NodePane
    parts: Sequence[StepPart]
    hidden_parts: int
    path: Sequence[PathStep]
    hidden_path: int
    reward: RewardTab | None
    evidence: EvidenceTab | None
    cost: CostTab | None
    log: EventsTab | None
    jumps: Sequence[Jump]
    fold: FoldLink | None
    list_place: ListPlace | None
    diff_url: str | None
    """The comparison with mark A; `None` without a mark, or at the mark itself."""

    def unseen_urls(self) -> list[tuple[str, str, str]]:
        """Return the id, the title and the URL of each node whose text is not drawn."""
        rest = self.query.url(sel=None, page=0, full=False).removeprefix("?")
        tail = f"&{rest}" if rest else ""
        return [
            (name, title, f"?sel={quote(name, safe='')}{tail}")
            for name, title in self.drawn.unseen.rows
        ]

    @classmethod
    def of(
        cls,
        loaded: LoadedRollout,
        query: RolloutQuery,
        cache: TreeCache,
        list_place: ListPlace | None = None,
        *,
        shown: str | None = None,
    ) -> "RolloutPage":
        """Return the page. An unknown or missing selection is the node to look at first.

        `shown` is the name of the drawing that the browser has, which gets the changes only.
        """
        stored = loaded.stored
        facts = cache.facts(loaded)
        node = selected_node(stored, facts, query.sel)
        query = replace(query, sel=node.id)
        drawn = cache.drawing(loaded, _choices(query), node.id)
        known = cache.known_parts(drawn, shown)
        record = _record(stored)
        parts = [] if node.step is None else step_parts(node.step, is_full=query.full)
        path = _path(node, query)
        tab = query.tab
        return cls(
            id=stored.tree.rollout_id,
            task=stored.tree.task_id,
            status=stored.tree.status,
            reason=_reason(record, stored),
            **_activity(loaded, cache, query),
            query=query,
            facts=facts,
            drawn=drawn,
            svg=drawn.drawing.changes(known) if known else drawn.drawing.selecting(node.id),
            has_unseen=drawn.unseen.digest in known,
            root=stored.tree.root.id,
            nodes=len(stored.tree.index),
            events=loaded.seq + 1,
            record=record,
            pane=NodePane.of(node, facts),
            parts=[part for part in parts if part.kind not in query.hide],
            hidden_parts=sum(part.kind in query.hide and part.kind != "raw" for part in parts),
            path=path[-_PATH:],
            hidden_path=max(len(path) - _PATH, 0),
            reward=RewardTab.of(node) if tab == "reward" else None,
            evidence=EvidenceTab.of(stored, node) if tab == "evidence" else None,
            cost=CostTab.of(node, recorded_calls(stored)) if tab == "cost" else None,
            log=EventsTab.of(node, stored.log.events, query.page) if tab == "events" else None,
            jumps=_jumps(node, facts, query),
            fold=_fold_link(node, query),
            list_place=list_place,
            diff_url=_diff_url(stored.tree.rollout_id, node, query),
        )


def selected_node(stored: StoredRollout, facts: TreeFacts, name: str | None) -> RolloutNode:
    """Return the node called `name`, else the first fork or question, else the first leaf."""
    tree = stored.tree
    if name is not None and name in tree.index:
        return tree.index[name]
    forks = (node for node in tree.nodes if len(node.children) > 1)
    return next(forks, None) or min(tree.leaves, key=lambda leaf: facts.order[leaf.id])


def _choices(query: RolloutQuery) -> DrawingChoices:
    own = ("sel", "open", "page", "full")
    others = {k: v for k, v in query.parameters().items() if k not in own}
    return DrawingChoices(
        mode=query.mode,
        fold=query.fold,
        opened=query.opened,
        closed=query.closed,
        a=query.a,
        others="&".join(f"{name}={quote(value, safe=',')}" for name, value in others.items()),
    )


def _activity(loaded: LoadedRollout, cache: TreeCache, query: RolloutQuery) -> "_Activity":
    stored = loaded.stored
    if stored.tree.status != "running":
        return {"now": (), "liveness": ""}
    progress, process = cache.progress(loaded), writer_of(stored.directory)
    now, last = page_time(), progress.last_sign or 0.0
    age = f"last event {span(max(0.0, now - last))} ago"
    if process is None:
        liveness = f"cut short, or running on another host: no process here writes its log, {age}"
    else:
        liveness = f"running in process {process}, {age}"
    # What was open in a dead rollout does not continue after its last event.
    until = last if process is None else now
    return {
        "now": [
            RunningBranch(each.node, each.text_at(until), query.url(sel=each.node, page=0))
            for each in progress.branches
        ],
        "liveness": liveness,
    }


def _record(stored: StoredRollout) -> RolloutRecord | None:
    try:
        return stored.record
    except StoreError:
        return None


def _reason(record: RolloutRecord | None, stored: StoredRollout) -> str:
    if record is not None and record.reward is not None:
        return ""
    error = stored.tree.error if record is None else record.error
    if error is not None:
        return f"{error.boundary}: {error.message}"
    if record is not None and record.cause is not None:
        return str(record.cause)
    return ""


def _path(node: RolloutNode, query: RolloutQuery) -> list[PathStep]:
    steps = [each for each in node.path if each.step is not None]
    return [
        PathStep(number, each.id, title_of(each), query.url(sel=each.id, page=0))
        for number, each in enumerate(steps, 1)
    ]


def _jumps(node: RolloutNode, facts: TreeFacts, query: RolloutQuery) -> list[Jump]:
    found: list[Jump] = []
    failure = facts.failure_after(node.id)
    if failure is not None:
        found.append(Jump("failure", "next failure", query.url(sel=failure.id, page=0)))
    if facts.worst is not None:
        drop = facts.drop(facts.worst)
        words = f"worst step {signed(drop)}" if drop is not None else "worst step"
        if facts.worst_after:
            words += f", after {facts.worst_after}"
        found.append(Jump("worst", words, query.url(sel=facts.worst.id, page=0)))
    return found


def _fold_link(node: RolloutNode, query: RolloutQuery) -> FoldLink | None:
    if node.id in query.closed:
        closed = tuple(name for name in query.closed if name != node.id)
        return FoldLink("unfold", query.url(sel=node.id, closed=closed))
    if node.id in query.opened:
        opened = tuple(name for name in query.opened if name != node.id)
        return FoldLink("fold again", query.url(sel=node.id, opened=opened))
    if node.children:
        return FoldLink("fold below", query.url(sel=node.id, closed=(*query.closed, node.id)))
    return None


def _diff_url(rollout: str, node: RolloutNode, query: RolloutQuery) -> str | None:
    if query.a is None or query.a == node.id:
        return None
    # A mark of another rollout is ROLLOUT:NODE.
    names = f"a={quote(query.a, safe='')}&b={quote(node.id, safe='')}"
    return f"/r/{quote(rollout, safe='')}/diff?{names}"
