"""The leaves of a rollout of the service as an export, each when it has its score."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from pathlib import Path

from benchflow_contracts import BenchFlowError, FinishedRollout, RolloutNode, UsageError
from benchflow_export import LeafStream
from benchflow_store import StoredRollout, is_final

from .core import RolloutService
from .problems import ConflictError, RequestRefusedError


async def export_leaves(service: RolloutService, ident: str, name: str) -> AsyncGenerator[bytes]:
    """Return the bytes of an export of one rollout, from its first leaf to its end.

    The stream ends early, without its last chunk, if the rollout runs again from its start.

    Raises:
        NotFoundError: No rollout has the id.
        RequestRefusedError: The format is unknown or has several files, or the rewards of the
            rollout are those of its group.
    """
    entry = service.board.find(ident)
    if entry.request.group is not None and service.settings.config.reward.group_import_path:
        raise RequestRefusedError(
            "the rewards are known when the group is scored",
            hint="read the result when the group has ended",
        )
    try:
        stream = LeafStream(name, entry.request.training)
    except UsageError as error:
        raise RequestRefusedError(str(error), hint=error.hint, where="format") from None
    return _parts(service, ident, stream)


async def _parts(service: RolloutService, ident: str, stream: LeafStream) -> AsyncGenerator[bytes]:
    board, entry = service.board, service.board.find(ident)
    used: Path | None = None
    with stream:
        async with aclosing(service.events(ident)) as events:
            async for event in events:
                directory = board.directory_of(entry)
                if event is None or directory is None:
                    continue
                if used not in {None, directory}:
                    raise ConflictError(f"rollout {ident!r} runs again from its start")
                if event.kind == "leaf" and event.leaf is not None:
                    used = directory
                    yield await asyncio.to_thread(_add, stream, directory, event.leaf.node)
        directory = board.directory_of(entry)
        if directory is not None and entry.status.state == "ended":
            for part in await asyncio.to_thread(_finish, stream, directory):
                yield part


def _add(stream: LeafStream, directory: Path, node: str) -> bytes:
    rollout = StoredRollout(directory).read_finished()
    leaf = rollout.tree.index.get(node)
    return b"" if leaf is None or not _is_ready(leaf) else stream.add(rollout, leaf)


def _is_ready(leaf: RolloutNode) -> bool:
    return leaf.reward is not None and is_final(leaf)


def _finish(stream: LeafStream, directory: Path) -> Iterable[bytes]:
    finished: list[FinishedRollout] = []
    try:
        finished.append(StoredRollout(directory).read_finished())
    except BenchFlowError:
        return []  # A cancelled rollout that keeps nothing.
    return list(stream.finish(finished))
