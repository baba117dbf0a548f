"""The rollout service behind the wire of verifiers' env server, for prime-rl's `serve.address`.

One request is one rollout: one tree is one episode, and each of its leaves is one trace.
"""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol

import zmq
import zmq.asyncio
from benchflow_contracts import FinishedRollout, Sample, TrainingOptions, UsageError
from benchflow_serve_client import RolloutEvent, RolloutRequest, RolloutStatus
from benchflow_store import StoredRollout

from .core import RolloutService
from .env_wire import (
    EnvWireError,
    WireRun,
    deltas_of,
    echo_task,
    error_reply,
    failed_episode,
    pack,
    read_run,
    render_episode,
    run_reply,
    unpack,
)
from .problems import QueueFullError
from .results import choose_samples

_MOST_BYTES: Final = 64 << 20
"""The largest frame of a request."""
_MOST_RUNS: Final = 10_000
_MOST_ID: Final = 200
_LOOPBACK: Final = re.compile(r"ipc://.+|tcp://(127\.0\.0\.1|localhost|\[::1\]):(\d+|\*)")
_logger = logging.getLogger(__name__)

_Call = tuple[bytes, bytes]
"""A client and its request."""


class RolloutSource(Protocol):
    """The part of `RolloutService` that runs episodes."""

    def submit(self, request: RolloutRequest) -> Coroutine[Any, Any, RolloutStatus]:
        """Put a rollout into the queue."""
        ...

    def status(self, ident: str) -> RolloutStatus:
        """Return a rollout."""
        ...

    def events(self, ident: str) -> AsyncIterator[RolloutEvent | None]:
        """Yield the events of a rollout until it has ended."""
        ...

    async def chosen_samples(
        self, ident: str, options: TrainingOptions
    ) -> tuple[FinishedRollout | None, Sequence[Sample], Mapping[str, int]]:
        """Return an ended rollout, what may be trained on, and the leaves left out by reason."""
        ...

    def acknowledge(self, ident: str) -> object:
        """Let the result be deleted."""
        ...

    async def cancel(self, ident: str, *, keep: Literal["none"] = "none") -> object:
        """End a rollout."""
        ...

    def has_policy(self, name: str) -> bool:
        """Return whether a policy is registered."""
        ...


class ServedEpisodes:
    """The rollouts of a service, as an env server needs them."""

    def __init__(self, service: RolloutService) -> None:
        self._service = service
        # A client that has lost its connection sends the run again, as another one.
        self.submit = partial(service.submit, is_tied=True)
        self.status = service.status
        self.events = service.events
        self.acknowledge = service.acknowledge
        self.cancel = service.cancel

    def has_policy(self, name: str) -> bool:
        """Return whether a policy is registered."""
        return name in self._service.policies

    async def chosen_samples(
        self, ident: str, options: TrainingOptions
    ) -> tuple[FinishedRollout | None, Sequence[Sample], Mapping[str, int]]:
        """Return an ended rollout, what may be trained on, and the leaves left out by reason.

        Raises:
            NotFoundError: No rollout has the id.
            StoreError: A file of the rollout is damaged.
        """
        board = self._service.board
        directory = board.directory_of(board.find(ident))

        def read() -> tuple[FinishedRollout | None, Sequence[Sample], Mapping[str, int]]:
            if directory is None or not (stored := StoredRollout(directory)).has_events:
                return None, [], {}
            finished = stored.read_finished()
            return finished, *choose_samples(finished, options, needs_tokens=True)

        return await asyncio.to_thread(read)


class EnvServer:
    """Answers `health`, `run` and `cancel` of verifiers' `EnvClient` on a ROUTER socket.

    The wire has no authentication. A run names a task of the service by its `id` or `name`. If its
    `model` is the name of a registered policy, the policy has the endpoint, and swaps of its
    weights reach the run; else the run's own `client` has the endpoint.
    """

    def __init__(
        self,
        source: RolloutSource,
        address: str,
        *,
        key_variables: Collection[str] = (),
        allow_remote: bool = False,
    ) -> None:
        """Bind the socket.

        Args:
            source: Runs the rollouts.
            address: The address of the socket, such as `tcp://127.0.0.1:5000`; port `*` is a free
                one.
            key_variables: The variables of this process that `api_key_var` of a run may name. Of
                any other, no key is sent: a run could send it to an address of its choice.
            allow_remote: Whether the address may be open to other machines.

        Raises:
            UsageError: The address is in use, malformed, or open to other machines.
        """
        if not allow_remote and not _LOOPBACK.fullmatch(address):
            raise UsageError(
                f"{address!r} lets any machine that reaches it run rollouts here",
                hint="listen on tcp://127.0.0.1:PORT, or allow other machines explicitly",
            )
        self._source = source
        self._key_variables = frozenset(key_variables)
        self._group = asyncio.TaskGroup()
        self._runs: dict[_Call, asyncio.Task[None]] = {}
        self._context: Any = zmq.asyncio.Context()
        self._socket: Any = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, 0),
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, _MOST_BYTES),
        ):
            self._socket.setsockopt(option, value)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._close()
            raise UsageError(f"cannot listen on {address!r}: {error}") from error
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    async def serve(self) -> None:
        """Answer requests until the task is cancelled. At the end, the runs are cancelled."""
        try:
            async with self._group:
                while True:
                    frames = await self._socket.recv_multipart()
                    if len(frames) == 4 and len(frames[1]) <= _MOST_ID:
                        self._dispatch(*frames)
                    else:
                        _logger.warning("a message of %d frames was dropped", len(frames))
        finally:
            self._close()

    def _dispatch(self, client: bytes, request: bytes, method: bytes, data: bytes) -> None:
        """Begin to answer. A run is known here before the cancellation that may follow."""
        call = (client, request)
        if method != b"run":
            self._group.create_task(self._answer_at_once(call, method, data))
        elif call in self._runs or len(self._runs) >= _MOST_RUNS:
            error = EnvWireError("too many runs, or two with one request id")
            self._group.create_task(self._reply(call, error_reply(error)))
        else:
            task = self._group.create_task(self._answer_run(call, data))
            self._runs[call] = task
            # A task that is cancelled before its first step has run nothing, also not its end.
            task.add_done_callback(lambda _: self._runs.pop(call, None))

    async def _answer_at_once(self, call: _Call, method: bytes, data: bytes) -> None:
        try:
            message = self._answer(call[0], method, data)
        except EnvWireError as error:
            message = error_reply(error)
        await self._reply(call, message)

    def _answer(self, client: bytes, method: bytes, data: bytes) -> Mapping[str, Any]:
        if method == b"health":
            return {"success": True, "error": None}
        if method == b"cancel":
            is_running = self._cancel(client, unpack(data))
            return {"success": True, "error": None, "cancelled": is_running}
        raise EnvWireError(f"unknown method {method[:40]!r}")

    def _cancel(self, client: bytes, message: Mapping[str, Any]) -> bool:
        """Cancel a run of the same client. A second cancellation has no effect."""
        target = message.get("request_id")
        if not isinstance(target, str):
            raise EnvWireError("the request_id of a cancellation is not a string")
        task = self._runs.get((client, target.encode("utf-8", "replace")))
        if task is None:
            return False
        return bool(task.cancelling()) or task.cancel()

    async def _answer_run(self, call: _Call, data: bytes) -> None:
        try:
            await self._run(call, data)
        except asyncio.CancelledError:
            # The rollout has ended. The client has given up, and counts the reply.
            message = {"success": False, "error": "Cancelled: rollout aborted"}
            await self._reply(call, message)
            raise
        except Exception as error:
            if not isinstance(error, UsageError):
                _logger.exception("a run of an env client")
            await self._reply(call, error_reply(error))

    async def _run(self, call: _Call, data: bytes) -> None:
        run = read_run(data)
        task = echo_task(run.task_data)
        request = self._request(run)
        ident = await self._submit(request)
        try:
            async for _ in self._source.events(ident):
                pass
            found = await self._episode(ident, run, task)
        except asyncio.CancelledError:
            await self._source.cancel(ident, keep="none")
            raise
        for trace in found["traces"]:
            for delta in deltas_of(trace):
                await self._send(call, b"delta", delta)
        await self._reply(call, run_reply(found))
        if self._source.status(ident).state == "ended":
            self._source.acknowledge(ident)

    def _request(self, run: WireRun) -> RolloutRequest:
        if run.client.headers or run.client.headers_from_env:
            _logger.warning("the headers of a run's client are not sent to the model endpoint")
        name = run.client.api_key_var
        key = os.environ.get(name) if name in self._key_variables else None
        return run.request(is_policy=self._source.has_policy(run.model), api_key=key or None)

    async def _submit(self, request: RolloutRequest) -> str:
        """Submit a rollout; wait while the queue is full. A cancelled one does not stay behind."""
        while True:
            submitting = self._group.create_task(_caught(self._source.submit(request)))
            try:
                found = await asyncio.shield(submitting)
            except asyncio.CancelledError:
                if isinstance(found := await submitting, RolloutStatus):
                    await self._source.cancel(found.id, keep="none")
                raise
            if isinstance(found, RolloutStatus):
                return found.id
            if not isinstance(found, QueueFullError):
                raise found
            await asyncio.sleep(found.retry_after_sec or 1.0)

    async def _episode(
        self, ident: str, run: WireRun, task: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        status = self._source.status(ident)
        if status.state != "ended":
            # The service stops, and the rollout continues at its next start.
            return failed_episode(ident, task, [("ServerStopped", "the server stops")])
        finished, samples, left_out = await self._source.chosen_samples(ident, run.training)
        if finished is not None and (found := render_episode(samples, finished.calls, task)):
            return found
        errors = [("NoSamples", f"{reason}: {count}") for reason, count in left_out.items()]
        if status.error is not None:
            errors.insert(0, (status.error.type, status.error.message))
        return failed_episode(ident, task, errors or [("NoSamples", str(status.outcome))])

    async def _reply(self, call: _Call, message: Mapping[str, Any]) -> None:
        await self._send(call, b"reply", message)

    async def _send(self, call: _Call, kind: bytes, message: Mapping[str, Any]) -> None:
        try:
            await self._socket.send_multipart([*call, kind, pack(message)], copy=False)
        except zmq.ZMQError as error:
            _logger.warning("a client is gone: %s", error)

    def _close(self) -> None:
        self._socket.close(0)
        self._context.term()


async def _caught(submission: Coroutine[Any, Any, RolloutStatus]) -> RolloutStatus | Exception:
    """Return the error of a submission: an error of a task would end its whole group."""
    try:
        return await submission
    except Exception as error:  # noqa: BLE001 - the caller raises it
        return error
