"""Actions of operators: who may act, the audit of each action, and the page of its result."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchflow_contracts import BenchFlowError, StoreError
from litestar import get
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException, NotFoundException
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath
from litestar.response import Redirect, Template

from benchflow_dashboard.actions.job_actions import in_words
from benchflow_dashboard.actions.launch import is_running
from benchflow_dashboard.actions.records import ActionRecord, ActionStore
from benchflow_dashboard.index import Index
from benchflow_dashboard.security.access import access_of, operator, user_of
from benchflow_dashboard.security.redaction import BundleRedactor, find_secrets

from .page import LivePage, PageRequest, render

_SHOWN_ERROR = 300
_RUNNING_SEC = 2
"""How often a page of actions reads itself: no topic reports the end of a command."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What came of an action."""

    record: ActionRecord
    command: str
    log: str
    is_running: bool

    @property
    def back_url(self) -> str:
        """The page from which the action came."""
        return self.record.back


def acting(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Allow requests of operators. The audit log also gets the refusals."""
    try:
        operator(connection, handler)
    except HTTPException as error:
        access = access_of(connection)
        user = access.user(connection)
        target, _, action = connection.url.path.rpartition("/act/")
        access.audit.record(
            "" if user is None else user.name,
            action[:100],
            target,
            f"refused: {error.detail}",
            _remote(connection),
        )
        raise


def new_record(
    request: PageRequest, store: ActionStore, *, action: str, job: str, target: str, back: str
) -> ActionRecord:
    """Return the record of an action that is about to be carried out."""
    return ActionRecord(
        id=store.new_id(),
        at=time.time(),
        user=user_of(request).name,
        action=action,
        job=job,
        target=target,
        back=back,
        command=(),
        outcome="requested",
    )


async def carry_out(
    request: PageRequest,
    store: ActionStore,
    record: ActionRecord,
    act: Callable[[], ActionRecord],
) -> Redirect:
    """Run `act` in a thread, note and audit its result, and redirect to the result.

    An action whose request cannot be noted and audited does not happen.

    Raises:
        StoreError: The action cannot be noted or audited.
    """
    remote = _remote(request)

    def run() -> None:
        _audit(request, record, remote)
        store.write(record)
        try:
            done = act()
        except BenchFlowError as error:
            done = record.refused(error)
        if done.outcome != "started":
            # A started command has its record, which may say already that the command ended.
            store.write(done)
        _audit(request, done, remote)

    await asyncio.to_thread(run)
    return Redirect(f"/actions/{record.id}", status_code=303)


def _audit(request: PageRequest, record: ActionRecord, remote: str) -> None:
    detail = f": {record.message[:_SHOWN_ERROR]}" if record.message else ""
    outcome = f"{record.outcome}{detail}"
    try:
        access_of(request).audit.record(record.user, record.action, record.target, outcome, remote)
    except OSError as error:
        raise StoreError(f"the audit log cannot be written: {error.strerror}") from error


def _remote(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    return access_of(connection).remote(connection)


def _redactor(index: Index, record: ActionRecord) -> BundleRedactor:
    """Return what masks the secrets of this process, and of the rollout of an action."""
    rollout = record.target.partition(":")[0]
    entries = index.find(rollout) if rollout else []
    return BundleRedactor(find_secrets([entry.directory for entry in entries], ()))


def _redacted(redactor: BundleRedactor, record: ActionRecord) -> ActionRecord:
    def text(value: str) -> str:
        return redactor.data(value.encode("utf-8", "replace")).decode("utf-8", "replace")

    fields = {
        "message": text(record.message),
        "hint": text(record.hint),
        "command": tuple(map(text, record.command)),
    }
    return record.model_copy(update=fields)


@get("/actions/{action:str}", include_in_schema=False, sync_to_thread=True)
def show_action(
    request: PageRequest,
    index: NamedDependency[Index],
    actions: NamedDependency[ActionStore],
    action: FromPath[str],
) -> Template:
    """Show what came of an action. Who may not act gets the texts without secrets."""
    record = actions.read(action)
    if record is None:
        raise NotFoundException("no action has this id")
    log = actions.log_tail(record.id)
    if not user_of(request).has_role("operator"):
        redactor = _redactor(index, record)
        record, log = (
            _redacted(redactor, record),
            redactor.data(log.encode()).decode("utf-8", "replace"),
        )
    view = ActionResult(record, in_words(record.command), log, is_running(record))
    return render(
        request,
        "action.html",
        view,
        title=f"{record.action} {record.target}",
        section="jobs",
        cli=record.command,
        context={"live": LivePage("runs", refresh_sec=_RUNNING_SEC if view.is_running else 0)},
    )


@get("/actions", include_in_schema=False, sync_to_thread=True)
def show_actions(request: PageRequest, actions: NamedDependency[ActionStore]) -> Template:
    """List the newest actions. Who may not act gets the texts without secrets."""
    records = actions.newest()
    if not user_of(request).has_role("operator"):
        redactor = BundleRedactor(find_secrets((), ()))
        records = [_redacted(redactor, record) for record in records]
    return render(
        request,
        "actions.html",
        records,
        title="Actions",
        section="jobs",
        context={"live": LivePage("runs", refresh_sec=_RUNNING_SEC)},
    )
