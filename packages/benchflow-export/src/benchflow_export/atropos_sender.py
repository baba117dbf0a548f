"""Sends groups to an Atropos API server, and waits while its queue is full.

Source of the protocol: atroposlib 0.4.0, `atroposlib.api.server`. The server does not authenticate
anyone: keep it on a trusted network.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import httpx
from benchflow_contracts import StoreError, UsageError

_LISTS: Final = ("tokens", "masks", "scores", "advantages", "inference_logprobs", "overrides")
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0


@dataclass(frozen=True, slots=True)
class SentGroups:
    """What `AtroposSender.send_all` did with the bodies."""

    groups: int = 0
    sequences: int = 0
    wrong_size: int = 0
    """Bodies with another number of sequences than `group_size`. They were not sent: one of them
    in the server's queue can keep the trainer from all batches."""
    too_long: int = 0
    """Bodies with a sequence of more than `max_token_length` tokens. They were not sent."""


class AtroposSender:
    """Registers an environment, sends groups, and disconnects at the end of the `with` block.

    Args:
        url: Where the server is, such as `http://127.0.0.1:8000`.
        group_size: The number of sequences in each body. It must divide the batch size of the
            trainer. With 1, a body with advantages is sent as one body for each sequence.
        max_token_length: A group with a longer sequence is not sent.
        name: The name of the environment in the trainer's logs.
        weight: The share of this environment in a batch, relative to other environments.
        max_queue: Wait while the server's queue has at least this number of groups.
        patience_sec: How long to wait for the trainer to start, or for room in the queue.
    """

    def __init__(  # noqa: PLR0913 - the fields of the registration
        self,
        url: str,
        *,
        group_size: int,
        max_token_length: int,
        name: str = "benchflow",
        weight: float = 1.0,
        max_queue: int = 16,
        patience_sec: float = 600.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if group_size < 1 or max_queue < 1:
            raise UsageError(
                f"group_size is {group_size} and max_queue is {max_queue}",
                hint="both must be at least 1",
            )
        self._registration = {
            "max_token_length": max_token_length,
            "desired_name": name,
            "weight": weight,
            "group_size": group_size,
        }
        self._group_size, self._max_tokens = group_size, max_token_length
        self._max_queue, self._patience, self._sleep = max_queue, patience_sec, sleep
        self._client = httpx.Client(base_url=url, timeout=60, transport=transport)
        self._env_id: int | None = None

    def __enter__(self) -> Self:
        """Register the environment. Waits until the trainer has started.

        Raises:
            StoreError: The server did not answer, or the trainer did not start in time.
        """
        try:
            self._wait(self._register, "the trainer did not start")
        except BaseException:
            self._client.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect the environment, if the server still answers."""
        try:
            self._client.post("/disconnect-env", json={"env_id": self._env_id})
        except httpx.HTTPError:
            pass
        finally:
            self._client.close()

    def send_all(self, bodies: Iterable[Mapping[str, Any]]) -> SentGroups:
        """Send the bodies in order, such as those of `read_atropos_groups`.

        A body is sent once: if the connection breaks after it was sent, it is not sent again,
        because the server cannot tell a repetition from another group.

        Raises:
            StoreError: The server failed or refused a body, or its queue stayed full.
        """
        groups = sequences = wrong_size = too_long = 0
        for body in bodies:
            for part in self._parts(body):
                size = len(part["tokens"])
                if size != self._group_size:
                    wrong_size += 1
                elif max(map(len, part["tokens"])) > self._max_tokens:
                    too_long += 1
                else:
                    self._wait(self._has_room, "the queue of the trainer stayed full")
                    self._call("POST", "/scored_data", {**part, "env_id": self._env_id})
                    groups, sequences = groups + 1, sequences + size
        return SentGroups(groups, sequences, wrong_size, too_long)

    def _parts(self, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if self._group_size > 1 or body["advantages"] is None:
            yield body
            return
        overrides: dict[str, Any] = {**(body["group_overrides"] or {}), "group_size": 1}
        for at in range(len(body["tokens"])):
            own = {key: [body[key][at]] for key in _LISTS if body[key] is not None}
            yield {**body, **own, "group_overrides": overrides}

    def _register(self) -> bool:
        answer = self._call("POST", "/register-env", self._registration)
        env_id = answer.get("env_id")
        self._env_id = env_id if isinstance(env_id, int) else None
        return self._env_id is not None

    def _has_room(self) -> bool:
        size = self._call("GET", "/status", None).get("queue_size")
        return isinstance(size, int) and size < self._max_queue

    def _wait(self, is_done: Callable[[], bool], fault: str) -> None:
        """Call `is_done` with growing pauses until it is true."""
        waited, pause = 0.0, _FIRST_WAIT
        while not is_done():
            if waited >= self._patience:
                raise StoreError(
                    f"{self._client.base_url}: {fault} within {self._patience:g} s",
                    hint="start the trainer, or raise patience_sec",
                )
            self._sleep(pause)
            waited, pause = waited + pause, min(2 * pause, _LONGEST_WAIT)

    def _call(self, method: str, path: str, body: object) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, json=body)
            response.raise_for_status()
            answer: object = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise StoreError(
                f"{method} {self._client.base_url}{path}: {error or type(error).__name__}",
                hint="start the server with `run-api`, and check the address",
            ) from error
        return cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}


def read_atropos_groups(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the bodies of a file that the format `atropos` wrote."""
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)
