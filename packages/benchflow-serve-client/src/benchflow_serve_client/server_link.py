"""The driver's side of one server: it sends attempts in a session, and reads completions."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

from benchflow_contracts import Completion, Dispatch, NodeError
from benchflow_contracts.remote_workers import RemoteWorker
from benchflow_contracts.room import Room, attempt_key
from pydantic import ValidationError

from .errors import (
    ServiceConflictError,
    ServiceError,
    ServiceFailedError,
    ServiceNotFoundError,
    ServiceRefusedError,
    ServiceTokenError,
)
from .transport import RetryPolicy, RetryTimer, ServiceConnection, is_passing
from .worker_models import (
    CancelBatch,
    CompletionBatch,
    DispatchBatch,
    WorkerSessionRequest,
    WorkerSessionStatus,
)

_ONCE: Final = RetryPolicy(total_sec=0)
_FOREVER: Final = RetryPolicy(total_sec=float("inf"), first_sec=0.2, most_sec=5)
_BATCH: Final = 100
_PAUSE_SEC: Final = 1.0
_CLOSE_SEC: Final = 5.0
"""How long the end of a session is asked for. A lease ends it in any case."""
_OPEN_SEC: Final = 600.0
"""How long a server may take to open an executor, which may build its sandboxes."""
_logger = logging.getLogger(__name__)


class ServerLostError(Exception):
    """The session with a server has ended: the server is gone, was silent, or forgot it."""


class ServerLink(RemoteWorker):
    """The attempts on one server.

    Each request has a lease to be answered in. After that, the attempts there are reported as lost,
    and the session is given up: whatever the server still does with it is never read. A server that
    comes back has to end the old session before it gets a new one.
    """

    fatal = ServerLostError

    def __init__(
        self,
        connection: ServiceConnection,
        request: WorkerSessionRequest,
        report: Callable[[Completion, Dispatch | None], None],
        on_change: Callable[[], None],
    ) -> None:
        """Prepare the link, without a request.

        Args:
            connection: The connection to the server.
            request: How to open a session.
            report: Gets one completion for each attempt, with its dispatch.
            on_change: Is called when the link may have room for an attempt, or lost it.
        """
        super().__init__(connection.url, Room({}, connection.url), on_change)
        self.refusal = ""
        """Why the server does not run this job; such a server is not asked again."""
        self._connection = connection
        self._request = request
        self._lease_sec = request.lease_sec
        self._report = report
        self._session = ""
        self._is_open = False
        """Whether the server may have the session."""
        self._arrived = 0
        self._is_closing = False

    async def serve(self) -> None:
        """Use the server until `close`, or until the server refuses the job."""
        while not self._is_closing:
            try:
                await self._open()
            except ServiceConflictError:
                await asyncio.sleep(_PAUSE_SEC)  # The lease ended before the session was open.
                continue
            except ServiceRefusedError as error:
                _logger.warning("%s does not run this job: %s", self.name, error)
                self.refusal = f"{error} (hint: {error.hint})"
                self.on_change()
                return
            try:
                await self.exchange()
            except ServerLostError as error:
                if not self._is_closing:
                    _logger.warning("the session with %s is lost: %s", self.name, error)
            finally:
                self._lose()

    async def close(self, grace_sec: float) -> None:
        """Cancel every attempt, wait for the completions, and close the session."""
        self._is_closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_sec), asyncio.TaskGroup() as group:
                for key in [*self.attempts]:
                    group.create_task(self.cancel(key, grace_sec))
        if self._is_open:
            total = min(grace_sec, _CLOSE_SEC) if self.is_available else 0
            policy = RetryPolicy(total, most_sec=1)
            with suppress(ServiceError, TimeoutError):
                async with asyncio.timeout(grace_sec):
                    await self._end_session(policy)

    async def _open(self) -> None:
        """Open a session, after the end of the one before. Wait for the server as long as it takes.

        Raises:
            ServiceRefusedError: The server does not run this job.
        """
        if self._is_open:
            await self._end_session(_FOREVER)
        self._session, self._arrived, self._is_open = uuid4().hex, 0, True
        try:
            body = await self._connection.send(
                "PUT", self._path(), body=self._request, wait_sec=_OPEN_SEC, retry=_FOREVER
            )
            status = WorkerSessionStatus.model_validate_json(body)
        except ServiceNotFoundError as error:
            raise ServiceRefusedError(
                "the server does not run jobs", hint="start `bench serve` with --allow-jobs"
            ) from error
        except (ValidationError, ServiceFailedError) as error:
            raise ServiceRefusedError(str(error)) from error
        self.room = Room(status.capacity, self.name)

    async def _end_session(self, retry: RetryPolicy) -> None:
        """Let the server end what it still runs in the session, and wait for the teardown."""
        await self._connection.send("DELETE", self._path(), retry=retry)
        self._is_open = False

    async def send(self, dispatches: list[Dispatch], cancels: list[str]) -> None:
        """Send attempts in batches, and then cancellations."""
        for first in range(0, len(dispatches), _BATCH):
            await self._start(dispatches[first : first + _BATCH])
        if cancels:
            with suppress(ServiceRefusedError):  # `close` ends the attempts in any case.
                await self._ask("POST", "/cancel", CancelBatch(keys=cancels))

    async def _start(self, batch: list[Dispatch]) -> None:
        """Send attempts. One that the server refuses, for example as too large, is unscored."""
        try:
            await self._ask("POST", "/dispatches", DispatchBatch(dispatches=batch))
        except ServiceRefusedError as error:
            if len(batch) > 1:
                for each in batch:
                    await self._start([each])
                return
            failure = NodeError(
                boundary="usage", type=type(error).__name__, message=str(error), hint=error.hint
            )
            completion = Completion.of(batch[0], "unscored", error=failure)
            self.end(attempt_key(batch[0]), completion)

    async def collect(self) -> None:
        """Read completions until the session has ended.

        Raises:
            ServerLostError: It has ended.
        """
        while True:
            params = {"after": self._arrived}
            try:
                body = await self._ask("GET", "/completions", None, params)
                batch = CompletionBatch.model_validate_json(body)
            except ServiceRefusedError as error:
                raise ServerLostError(str(error)) from error
            except ValidationError as error:
                raise ServerLostError("its completions cannot be read") from error
            for each in batch.completions:
                if each.number > self._arrived:
                    self._arrived = each.number
                    self.end(attempt_key(each.completion), each.completion)

    async def _ask(
        self,
        method: str,
        part: str,
        body: DispatchBatch | CancelBatch | None,
        params: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Send a request of the session until it is answered. Each one may be sent twice.

        Raises:
            ServerLostError: It was not answered within the lease, or the session has ended.
            ServiceRefusedError: The server refuses the request.
        """
        timer = RetryTimer(RetryPolicy(self._lease_sec, first_sec=0.1, most_sec=1))
        try:
            async with asyncio.timeout(self._lease_sec):
                while True:
                    try:
                        return await self._connection.send(
                            method,
                            self._path() + part,
                            body=body,
                            params=params,
                            # A connection that was cut silently leaves time for another one.
                            answer_sec=self._lease_sec / 2,
                            retry=_ONCE,
                        )
                    except ServiceError as error:
                        if not is_passing(error):
                            raise
                        await timer.pause(error)
        except TimeoutError:
            raise ServerLostError(f"it did not answer for {self._lease_sec:g} s") from None
        except (ServiceNotFoundError, ServiceTokenError) as error:
            raise ServerLostError(f"the session has ended: {error}") from error
        except ServiceRefusedError:
            raise
        except ServiceError as error:
            raise ServerLostError(str(error)) from error

    def _lose(self) -> None:
        """Report what has no completion as lost."""
        self.discard_mail()
        for key, attempt in [*self.attempts.items()]:
            self.end(key, Completion.of(attempt.dispatch, "lost"))
        self.room = Room({}, self.name)
        self.on_change()

    def end(self, key: str, completion: Completion) -> None:
        """Report the completion of an attempt once. A completion of something else is ignored."""
        attempt = self.forget(key)
        if attempt is None:
            _logger.warning(
                "%s sent a completion of attempt %s, which it does not run", self.name, key
            )
            return
        self._report(_checked(attempt.dispatch, completion, self.name), attempt.dispatch)

    def _path(self) -> str:
        return f"/v1/worker-sessions/{self._session}"


def _checked(dispatch: Dispatch, completion: Completion, url: str) -> Completion:
    """Return the completion, or one without a score if it names another rollout."""
    names = ("job", "index", "slot", "attempt", "epoch", "rollout")
    if all(getattr(dispatch, name) == getattr(completion, name) for name in names):
        return completion
    message = f"{url} sent a completion of rollout {completion.rollout!r} for {dispatch.rollout!r}"
    error = NodeError(boundary="internal", type="WrongCompletionError", message=message)
    return Completion.of(dispatch, "unscored", error=error)
