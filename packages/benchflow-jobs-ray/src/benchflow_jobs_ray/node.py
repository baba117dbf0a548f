"""The driver's side of one node: it sends attempts to the actor there, and reads completions."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from benchflow_contracts import Completion, Dispatch
from benchflow_contracts.remote_workers import RemoteWorker
from benchflow_contracts.room import Room, attempt_key

from .connection import ActorDiedError, RayError

_PROBE_SEC: Final = 1.0
"""The pause between two calls to an actor that does not answer."""


class NodeLostError(Exception):
    """The actor of a node has ended."""


class Node(RemoteWorker):
    """The attempts on one node.

    While its actor does not answer, the attempts there are reported as lost, and the node gets no
    more. An actor that answers again has to end them first. If one of them was completed, that is
    reported too: the record decides which completion counts.
    """

    fatal = ActorDiedError

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
        super().__init__(name, Room(capacity, f"node {name}"), on_change)
        self._actor = actor
        self._lease_sec = lease_sec
        self._report = report
        self._arrived = 0

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
                await self.exchange()
            except (TimeoutError, RayError) as error:
                self._suspend()
                if isinstance(error, ActorDiedError):
                    raise NodeLostError(str(error)) from error
            await self._fence()

    def lose(self) -> None:
        """Report what has no completion as lost. The node does not come back."""
        self._suspend()
        for key in list(self.attempts):
            self.forget(key)

    async def close(self, grace_sec: float) -> None:
        """Cancel every attempt, wait for their completions, and end the actor's executor."""
        for key in list(self._unsent):
            await self.cancel(key, grace_sec)
        try:
            async with asyncio.timeout(grace_sec):
                await self._actor.close.remote()
                for attempt in list(self.attempts.values()):
                    await attempt.ended.wait()
        except (TimeoutError, RayError):
            return  # `lose` reports what is left

    async def send(self, dispatches: list[Dispatch], cancels: list[str]) -> None:
        """Send attempts, and then cancellations."""
        async with asyncio.timeout(self._lease_sec):
            if dispatches:
                await self._actor.run.remote([each.model_dump_json() for each in dispatches])
            if cancels:
                await self._actor.cancel.remote(cancels)

    async def collect(self) -> None:
        """Read completions until the actor does not answer."""
        while True:
            async with asyncio.timeout(self._lease_sec):
                batch = await self._actor.collect.remote(self._arrived)
            for number, text in batch:
                completion = Completion.model_validate_json(text)
                self.end(attempt_key(completion), completion)
                self._arrived = number

    def _suspend(self) -> None:
        """Report every attempt as lost. Its resources here stay in use: it may still run."""
        self.is_available = False
        self.discard_mail()
        for attempt in self.attempts.values():
            if not attempt.is_lost:
                attempt.is_lost = True
                self._report(Completion.of(attempt.dispatch, "lost"), attempt.dispatch)

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
        # `collect` reads the batch again, and reports it.
        waiting = {attempt_key(Completion.model_validate_json(text)) for _, text in batch}
        for key in self.attempts.keys() - waiting - set(left):
            self.forget(key)  # its dispatch did not arrive

    def end(self, key: str, completion: Completion) -> None:
        """Report a completion. One after `lost`, or of a call that came late, is not the first."""
        attempt = self.forget(key)
        is_first = attempt is not None and not attempt.is_lost
        self._report(completion, attempt.dispatch if attempt and is_first else None)
