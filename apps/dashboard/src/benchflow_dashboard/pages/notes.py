"""Notes and labels on a rollout or a node: the forms of the rollout's page."""

import asyncio
from collections.abc import Callable
from typing import Final

from benchflow_contracts import StoreError, UsageError
from litestar import post
from litestar.datastructures import FormMultiDict
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response import Redirect

from benchflow_dashboard.index import Index, RolloutEntry
from benchflow_dashboard.notes.store import NotesStore
from benchflow_dashboard.rollouts import RolloutCache
from benchflow_dashboard.security.access import access_of, checked_form, operator, user_of

from .page import PageRequest, find_one, local_path
from .rollout import load_rollout, rollout_url

_SHOWN: Final = 100


@post("/r/{rollout:str}/labels", include_in_schema=False, guards=[operator], status_code=303)
async def edit_label(
    request: PageRequest,
    index: NamedDependency[Index],
    rollouts: NamedDependency[RolloutCache],
    notes: NamedDependency[NotesStore],
    rollout: FromPath[str],
) -> Redirect:
    """Add a label to a rollout or a node, or delete it if `delete` is set."""
    form = await checked_form(request)
    label, author = str(form.get("label", "")), user_of(request).name

    def edit(entry: RolloutEntry, node: str) -> None:
        if form.get("delete"):
            notes.delete_label(entry.id, node, label)
        else:
            notes.add_label(entry.id, node, label, author)

    action = "label-delete" if form.get("delete") else "label-add"
    find = _finder(index, rollouts, rollout)
    return await _change(request, form, find, f"{action} {label[:_SHOWN]}", edit)


@post("/r/{rollout:str}/notes", include_in_schema=False, guards=[operator], status_code=303)
async def edit_note(
    request: PageRequest,
    index: NamedDependency[Index],
    rollouts: NamedDependency[RolloutCache],
    notes: NamedDependency[NotesStore],
    rollout: FromPath[str],
) -> Redirect:
    """Add a note to a rollout or a node, or delete the note with the number `delete`."""
    form = await checked_form(request)
    number, author = str(form.get("delete", "")), user_of(request).name

    def edit(entry: RolloutEntry, node: str) -> None:
        if not number:
            notes.add_note(entry.id, node, str(form.get("text", "")), author)
        elif number.isascii() and number.isdigit() and len(number) < 16:
            notes.delete_note(entry.id, int(number))
        else:
            raise UsageError(f"not the number of a note: {number[:_SHOWN]!r}")

    action = f"note-delete {number[:_SHOWN]}" if number else "note-add"
    return await _change(request, form, _finder(index, rollouts, rollout), action, edit)


_Find = Callable[[str], RolloutEntry]


def _finder(index: Index, rollouts: RolloutCache, rollout: str) -> _Find:
    """Return a function that finds the rollout, if it has the node of its argument."""

    def find(node: str) -> RolloutEntry:
        entry = find_one(index, rollout)
        if node:
            loaded = load_rollout(rollouts, entry)
            if loaded is None or node not in loaded.stored.tree.index:
                raise UsageError(f"the rollout {entry.id!r} has no node {node[:_SHOWN]!r}")
        return entry

    return find


async def _change(
    request: PageRequest,
    form: FormMultiDict,
    find: _Find,
    action: str,
    edit: Callable[[RolloutEntry, str], None],
) -> Redirect:
    """Audit and carry out a change in a thread, and return to the page of the form."""
    access, user, node = access_of(request), user_of(request).name, str(form.get("node", ""))
    remote = access.remote(request)

    def run() -> RolloutEntry:
        entry = find(node)
        try:
            access.audit.record(user, action, f"{entry.id}:{node}", "ok", remote)
        except OSError as error:
            raise StoreError(f"the audit log cannot be written: {error.strerror}") from error
        edit(entry, node)
        return entry

    entry = await asyncio.to_thread(run)
    back = str(form.get("back", "")) or rollout_url(entry.id)
    return Redirect(local_path(back), status_code=303)
