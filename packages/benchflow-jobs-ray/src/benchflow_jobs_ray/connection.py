"""Every call to Ray itself. None of them blocks the event loop, and each one has a time limit."""

# ruff: noqa: E402 - Ray reads its environment when it is imported

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Final, TypeVar

from .cluster import ENVIRONMENT
from .errors import RayStartError
from .host import WorkerHost

for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

import ray as _untyped
from ray.exceptions import ActorDiedError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["LABEL", "ActorDiedError", "RayError"]

T = TypeVar("T")
_RAY: Final[Any] = _untyped
"""Ray, whose types are incomplete."""

LABEL: Final = "benchflow"
"""The custom resource of a node that counts its slots. `benchflow_NAME` counts the need `NAME`."""
_CALL_SEC: Final = 20.0
_ASK_SEC: Final = 10.0
"""How long the head may take to name its nodes."""


async def connect(address: str, seconds: float) -> bool:
    """Connect to a cluster. Return whether this call connected, not an earlier one.

    Raises:
        RayStartError: The cluster does not answer.
    """
    if _RAY.is_initialized():
        return False

    def init() -> None:
        _RAY.init(address=address, log_to_driver=False, logging_level="ERROR")

    try:
        await _in_thread(init, seconds)
    except TimeoutError:
        raise RayStartError(f"the Ray cluster at {address!r} did not answer in time") from None
    except Exception as error:
        raise RayStartError(f"cannot connect to the Ray cluster at {address!r}: {error}") from error
    return True


async def disconnect() -> None:
    """Leave the cluster. Its actors of this driver end."""
    with suppress(Exception):
        await _in_thread(_RAY.shutdown, _CALL_SEC)


async def alive_nodes() -> dict[str, dict[str, int]] | None:
    """Return the resources of each node with the label, or `None` if the head does not answer."""
    try:
        nodes: list[dict[str, Any]] = await _in_thread(_RAY.nodes, _ASK_SEC)
    except Exception:  # noqa: BLE001 - Ray raises errors of many kinds here
        return None
    found = {n["NodeID"]: _needs(n["Resources"]) for n in nodes if n["Alive"]}
    return {name: needs for name, needs in found.items() if needs.get("slots", 0) >= 1}


def create_actor(node: str, slots: int, *arguments: object) -> Any:  # noqa: ANN401 - made at run time
    """Create the actor of a node, and return its handle. It holds all slots of the node.

    Ray starts it never again and repeats none of its calls: the driver does both.
    """
    actor: Any = _RAY.remote(WorkerHost)
    return actor.options(
        num_cpus=0,
        resources={LABEL: slots},
        max_restarts=0,
        max_task_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(*arguments)


async def end_actors(actors: Sequence[Any]) -> None:
    """Kill actors. Without effect on those that have ended."""

    def end() -> None:
        for actor in actors:
            with suppress(Exception):
                _RAY.kill(actor)

    with suppress(TimeoutError):
        await _in_thread(end, _CALL_SEC)


def _needs(resources: Mapping[str, float]) -> dict[str, int]:
    prefix = f"{LABEL}_"
    needs = {n.removeprefix(prefix): int(v) for n, v in resources.items() if n.startswith(prefix)}
    return {**needs, "slots": int(resources.get(LABEL, 0))}


async def _in_thread(work: Callable[[], T], seconds: float) -> T:
    """Run `work` in a thread that does not keep the program from ending.

    Raises:
        TimeoutError: It did not end in time. Its thread is abandoned.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            failure = error
        with suppress(RuntimeError):  # the loop has ended, and with it the caller
            loop.call_soon_threadsafe(settle, value, failure)

    Thread(target=run, name="ray", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await done
