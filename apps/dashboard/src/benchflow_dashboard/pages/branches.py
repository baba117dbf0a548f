"""Branches of a stored rollout: `/r/{rollout}/act/{action}?node=`."""

import asyncio
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from benchflow_contracts import RolloutNode
from litestar import get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import Redirect, Template

from benchflow_dashboard.actions.branches import (
    BRANCH_ACTIONS,
    BranchAction,
    BranchSource,
    NodeAction,
    branch_words,
    find_offer,
    node_actions,
    read_count,
)
from benchflow_dashboard.actions.estimate import estimate
from benchflow_dashboard.actions.launch import start_command
from benchflow_dashboard.actions.records import ActionRecord, ActionStore
from benchflow_dashboard.index import Index
from benchflow_dashboard.rollouts import RolloutCache
from benchflow_dashboard.security.access import checked_form, limited_action
from benchflow_dashboard.settings import DashboardSettings
from benchflow_dashboard.tree.cache import TreeCache

from .actions import acting, carry_out, new_record
from .page import PageRequest, find_one, render
from .rollout import load_rollout, rollout_url

_PROMPT: Final = 20_000


@dataclass(frozen=True, slots=True)
class BranchConfirmation:
    """The page before a branch of a rollout."""

    rollout: str
    node: str
    action: NodeAction
    cost: str
    time: str
    back_url: str

    @classmethod
    def of(
        cls, index: Index, source: BranchSource, node: RolloutNode, name: BranchAction
    ) -> "BranchConfirmation":
        """Return the page of an action at a node.

        Raises:
            NotFoundException: The node is not a fork.
        """
        entry = source.entry
        found = {each.action: each for each in node_actions(source, node)}
        if name not in found:
            raise NotFoundException("the node is not a fork")
        with index.read() as session:
            means = estimate(session, entry.job, entry.task)
        return cls(
            rollout=entry.id,
            node=node.id,
            action=found[name],
            cost=f"for each continuation at most {means.cost_of(1)}",
            time=f"for each continuation at most {means.time_of(1)}",
            back_url=_node_url(entry.id, node.id),
        )


# Not `sync_to_thread`: Litestar wraps such a handler twice if its path has two handlers.
@get("/r/{rollout:str}/act/{action:str}", include_in_schema=False, guards=[acting])
async def confirm_branch(
    request: PageRequest,
    index: NamedDependency[Index],
    rollouts: NamedDependency[RolloutCache],
    trees: NamedDependency[TreeCache],
    settings: NamedDependency[DashboardSettings],
    rollout: FromPath[str],
    action: FromPath[str],
) -> Template:
    """Show what a branch would do, and the form that starts it."""
    name = _action(action)
    wanted = str(request.query_params.get("node", ""))
    source, node = await asyncio.to_thread(_find_node, index, rollouts, trees, rollout, wanted)
    entry = source.entry
    view = await asyncio.to_thread(BranchConfirmation.of, index, source, node, name)
    offer = view.action.offer
    prompt = "PROMPT" if offer is not None and offer.needs_prompt else ""
    words = () if offer is None else branch_words(entry, offer, 1, settings.jobs_dir, prompt)
    return render(
        request,
        "action_branch.html",
        view,
        title=f"{view.action.title}: {entry.id}",
        section="runs",
        cli=("bench", *words) if words else (),
        context={"act_url": f"{rollout_url(entry.id)}/act"},
    )


@post(
    "/r/{rollout:str}/act/{action:str}",
    include_in_schema=False,
    guards=[acting, limited_action],
    status_code=303,
)
async def act_on_rollout(
    request: PageRequest,
    index: NamedDependency[Index],
    rollouts: NamedDependency[RolloutCache],
    trees: NamedDependency[TreeCache],
    settings: NamedDependency[DashboardSettings],
    actions: NamedDependency[ActionStore],
    rollout: FromPath[str],
    action: FromPath[str],
) -> Redirect:
    """Start a branch of a rollout, and redirect to its result."""
    name = _action(action)
    form = await checked_form(request)
    count = read_count(str(form.get("n", "1")))
    prompt = str(form.get("prompt", "")).strip()[:_PROMPT]
    wanted = str(form.get("node", ""))
    source, node = await asyncio.to_thread(_find_node, index, rollouts, trees, rollout, wanted)
    entry = source.entry
    record = new_record(
        request,
        actions,
        action=name,
        job=entry.job,
        target=f"{entry.id}:{node.id}",
        back=_node_url(entry.id, node.id),
    )

    def act() -> ActionRecord:
        offer = find_offer(name, source, node)
        words = branch_words(entry, offer, count, settings.jobs_dir, prompt)
        named = record.model_copy(update={"command": ("bench", *words)})
        return start_command(actions, named, words)

    return await carry_out(request, actions, record, act)


def _action(name: str) -> BranchAction:
    for action in BRANCH_ACTIONS:
        if action == name:
            return action
    raise NotFoundException("a rollout does not have this action")


def _node_url(rollout: str, node: str) -> str:
    return rollout_url(rollout, urlencode({"sel": node}))


def _find_node(
    index: Index, rollouts: RolloutCache, trees: TreeCache, rollout: str, node: str
) -> tuple[BranchSource, RolloutNode]:
    entry = find_one(index, rollout)
    loaded = load_rollout(rollouts, entry)
    if loaded is None or node not in loaded.stored.tree.index:
        raise NotFoundException("the rollout does not have this node")
    tree = loaded.stored.tree
    return BranchSource.of(entry, tree, trees.facts(loaded)), tree.index[node]
