"""The driver's side of one node: it sends attempts to the actor there, and reads completions."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchflow_contracts import Completion, Dispatch
from benchflow_jobs.leased_worker import key_of
from benchflow_jobs.worker import Room

from .connection import ActorDiedError, RayError

_PROBE_SEC: Final = 1.0
"""The pause between two calls to an actor that does not answer."""


class NodeLostError(Exception):
    """The actor of a node has ended."""


@dataclass(slots=True)
class _Work:
    dispatch: Dispatch
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_lost: bool = False
    """Whether it was reported as lost. The attempt may still run, and end."""


class Node:
    """The attempts on one node.

    While its actor does not answer, the attempts there are reported as lost, and the node gets no
    more. An actor that answers again has to end them first. If one of them was completed, that is
    reported too: the record decides which completion counts.
    """

    def __init__(
        self,
        name: str,
        capacity: Mapping[str, int],
        actor: Any,  # noqa: ANN401 - a handle of Ray's, whose methods are made at run time
        lease_sec: float,
        report: Callable[[Completion, Dispatch | None], None],
        on_change: Callable[[], None],
    ) -> None:
        """Prepare a node.

        Args:
            name: The id of the node.
            capacity: The resources of the node.
            actor: The handle of its `WorkerHost`.
            lease_sec: How long the actor may take to answer.
            report: Gets each completion, and its dispatch if it is the first one of an attempt.
            on_change: Is called when the node may have room for an attempt.
        """
        self.name = name
        self.room = Room(capacity, f"node {name}")
        self.is_available = False
        self._actor = actor
        self._lease_sec = lease_sec
        self._report = report
        self._on_change = on_change
        self._works: dict[str, _Work] = {}
        self._unsent: dict[str, _Work] = {}
        self._cancels: list[str] = []
        self._has_mail = asyncio.Event()
        self._arrived = 0

    @property
    def load(self) -> float:
        """The part of the slots that is in use."""
        return self.room.held("slots") / max(1, self.room.capacity["slots"])

    def add(self, dispatch: Dispatch) -> None:
        """Hand out an attempt. The node must have room for it."""
        self.room.hold(dispatch)
        key = key_of(dispatch)
        self._works[key] = self._unsent[key] = _Work(dispatch)
        self._has_mail.set()

    async def cancel(self, key: str, grace_sec: float) -> None:
        """Cancel an attempt, and wait for its completion for `grace_sec` seconds."""
        work = self._works.get(key)
        if work is None:
            return
        if self._unsent.pop(key, None) is not None:
            self._end(key, Completion.of(work.dispatch, "cancelled"))
            return
        self._cancels.append(key)
        self._has_mail.set()
        try:
            async with asyncio.timeout(grace_sec):
                await work.ended.wait()
        except TimeoutError:
            return  # its completion arrives later

    async def open(self) -> str:
        """Wait until the actor can run attempts. Return why it cannot, or an empty string.

        Raises:
            NodeLostError: The actor has ended.
        """
        try:
            # Its reference is kept: Ray could cancel a call whose result nobody can read.
            self._life = self._actor.live.remote()
            return str(await self._actor.ready.remote())
        except RayError as error:
            raise NodeLostError(str(error)) from error

    async def serve(self) -> None:
        """Send and read until the actor has ended.

        Raises:
            NodeLostError: The actor has ended.
        """
        while True:
            try:
                await self._exchange()
            except (TimeoutError, RayError) as error:
                self._suspend()
                if isinstance(error, ActorDiedError):
                    raise NodeLostError(str(error)) from error
            await self._fence()

    def lose(self) -> None:
        """Report what has no completion as lost. The node does not come back."""
        self._suspend()
        for key in list(self._works):
            self._forget(key)

    async def close(self, grace_sec: float) -> None:
        """Cancel every attempt, wait for their completions, and end the actor's executor."""
        for key in list(self._unsent):
            await self.cancel(key, grace_sec)
        try:
            async with asyncio.timeout(grace_sec):
                await self._actor.close.remote()
                for work in list(self._works.values()):
                    await work.ended.wait()
        except (TimeoutError, RayError):
            return  # `lose` reports what is left

    async def _exchange(self) -> None:
        """Send and read at the same time. Raise the first error of either."""
        self.is_available = True
        self._on_change()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send())
                group.create_task(self._collect())
        except ExceptionGroup as errors:
            died = errors.subgroup(ActorDiedError)
            raise (died or errors).exceptions[0] from errors
        finally:
            self.is_available = False

    async def _send(self) -> None:
        while True:
            await self._has_mail.wait()
            self._has_mail.clear()
            dispatches = [work.dispatch.model_dump_json() for work in self._unsent.values()]
            cancels, self._cancels = self._cancels, []
            self._unsent.clear()
            async with asyncio.timeout(self._lease_sec):
                if dispatches:
                    await self._actor.run.remote(dispatches)
                if cancels:
                    await self._actor.cancel.remote(cancels)

    async def _collect(self) -> None:
        while True:
            async with asyncio.timeout(self._lease_sec):
                batch = await self._actor.collect.remote(self._arrived)
            for number, text in batch:
                completion = Completion.model_validate_json(text)
                self._end(key_of(completion), completion)
                self._arrived = number

    def _suspend(self) -> None:
        """Report every attempt as lost. Its resources here stay in use: it may still run."""
        self.is_available = False
        self._unsent.clear()
        for work in self._works.values():
            if not work.is_lost:
                work.is_lost = True
                self._report(Completion.of(work.dispatch, "lost"), work.dispatch)

    async def _fence(self) -> None:
        """End the attempts of an actor that did not answer, as soon as it answers.

        Raises:
            NodeLostError: The actor has ended.
        """
        while True:
            try:
                async with asyncio.timeout(2 * self._lease_sec):
                    left = await self._actor.fence.remote(self._lease_sec)
                    batch = await self._actor.collect.remote(self._arrived)
                break
            except ActorDiedError as error:
                raise NodeLostError(str(error)) from error
            except (TimeoutError, RayError):
                await asyncio.sleep(_PROBE_SEC)
        # `_collect` reads the batch again, and reports it.
        waiting = {key_of(Completion.model_validate_json(text)) for _, text in batch}
        for key in self._works.keys() - waiting - set(left):
            self._forget(key)  # its dispatch did not arrive

    def _end(self, key: str, completion: Completion) -> None:
        """Report a completion. One after `lost`, or of a call that came late, is not the first."""
        work = self._forget(key)
        self._report(completion, None if work is None or work.is_lost else work.dispatch)

    def _forget(self, key: str) -> _Work | None:
        work = self._works.pop(key, None)
        if work is not None:
            self.room.give_back(work.dispatch)
            work.ended.set()
            self._on_change()
        return work
