"""The difference between the states of two nodes: `/r/{rollout}/diff`."""

from benchflow_contracts import StoreError, UsageError
from benchflow_store import StepComparison, StoredRollout, compare_states, compare_steps
from litestar import get
from litestar.di import NamedDependency
from litestar.exceptions import ClientException
from litestar.params import FromPath
from litestar.response import Redirect, Template

from benchflow_dashboard.index import Index
from benchflow_dashboard.rollouts import RolloutCache
from benchflow_dashboard.settings import DashboardSettings
from benchflow_dashboard.tree.diff_page import DiffPage, choices_of

from .page import PageRequest, find_one, jobs_dir_words, render
from .rollout import live_page, load_rollout, rollout_url

_LONGEST = 400


@get("/r/{rollout:str}/diff", include_in_schema=False, sync_to_thread=True)
def show_diff(
    request: PageRequest,
    index: NamedDependency[Index],
    rollouts: NamedDependency[RolloutCache],
    settings: NamedDependency[DashboardSettings],
    rollout: FromPath[str],
) -> Template | Redirect:
    """Show the changes from the state of node `a` to the state of node `b`.

    A node is `n3`, or `ROLLOUT:n3` of another rollout.
    """
    entry = find_one(index, rollout)
    if entry.id != rollout:
        return Redirect(f"{rollout_url(entry.id)}/diff?{request.url.query}")
    loaded = load_rollout(rollouts, entry)
    if loaded is None:
        return Redirect(rollout_url(entry.id))
    own = loaded.stored
    known = choices_of(own.tree)
    a = request.query_params.get("a", "")[:_LONGEST] or next(iter(known), "")
    b = request.query_params.get("b", "")[:_LONGEST] or next(reversed(known), "")
    view = _compare(own, a, b, index, rollouts)
    first, second = (name if _is_other(own, name) else f"{entry.id}:{name}" for name in (a, b))
    return render(
        request,
        "diff.html",
        view,
        title=f"{a} to {b}",
        section="runs",
        cli=("bench", "rollout", "diff", first, second, *jobs_dir_words(settings)),
        context={
            "rollout": entry.id,
            "rollout_url": rollout_url(entry.id),
            # The other side may be of another rollout, whose events change the list of runs.
            "live": live_page(entry.id, loaded, "runs"),
        },
    )


def _compare(own: StoredRollout, a: str, b: str, index: Index, rollouts: RolloutCache) -> DiffPage:
    steps: StepComparison | None = None
    try:
        first, left = _resolve(own, a, index, rollouts)
        second, right = _resolve(own, b, index, rollouts)
        steps = compare_steps(first, left, second, right)
        found = compare_states(first, left, second, right)
    except UsageError as error:
        return DiffPage.without_states(a, b, own.tree, error, steps)
    except StoreError as error:
        raise ClientException(f"cannot read a state: {error}", status_code=422) from error
    return DiffPage.of(a, b, own.tree, found)


def _is_other(own: StoredRollout, name: str) -> bool:
    return ":" in name and name not in own.tree.index


def _resolve(
    own: StoredRollout, name: str, index: Index, rollouts: RolloutCache
) -> tuple[StoredRollout, str]:
    if not _is_other(own, name):
        return own, name
    rollout, _, node = name.partition(":")
    loaded = load_rollout(rollouts, find_one(index, rollout))
    if loaded is None:
        raise UsageError(f"the rollout {rollout!r} has no event yet")
    return loaded.stored, node
