"""The task's artifacts in the record of a rollout."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from benchflow_contracts import Artifact
from benchflow_contracts.redaction import redactor

from benchflow_reward.collect import Collected, collect, collect_beside

from .artifacts import declared_artifacts
from .grading_protocol import LiveNode
from .layout import ARTIFACTS

_PIECE_BYTES = 1024 * 1024


async def collect_artifacts(
    live: LiveNode,
    artifacts: Sequence[Artifact],
    into: Path,
    *,
    leave_out: bool,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> list[Collected]:
    """Copy `artifacts` out of the agent's sandbox to `into`, and keep them in the record.

    `leave_out` and `meanwhile` are those of `collect`.

    Raises:
        RewardError: The transfer itself broke, or the sandbox is gone.
    """
    await asyncio.to_thread(into.mkdir)
    paths = [artifact.source for artifact in artifacts if not artifact.service]
    of_box = iter(
        await collect(
            live.sandbox,
            paths,
            into,
            leave_out=leave_out,
            may_kill=not live.continues,
            meanwhile=meanwhile,
        )
    )
    taken = [
        await collect_beside(live.sandbox, artifact, into / f"beside-{index}")
        if artifact.service
        else next(of_box)
        for index, artifact in enumerate(artifacts)
    ]
    await asyncio.to_thread(_save, artifacts, taken, live.artifacts_dir)
    return taken


async def save_artifacts(live: LiveNode, into: Path) -> None:
    """Copy the artifacts into the record, if there is one. They do not influence the grading."""
    artifacts = declared_artifacts(live.task, live.protocol.rules, live.sandbox.spec.workdir)
    if artifacts and live.artifacts_dir is not None:
        await collect_artifacts(live, artifacts, into, leave_out=True)


def _save(
    artifacts: Sequence[Artifact], taken: Sequence[Collected], directory: Path | None
) -> None:
    for artifact, item in zip(artifacts, taken, strict=True):
        if item.local is not None:
            remove_excluded(artifact, item.local)
    write_artifacts(artifacts, taken, directory)


def remove_excluded(artifact: Artifact, local: Path) -> None:
    """Remove the files that `exclude` names from a copied directory.

    As with `tar --exclude`, a pattern is held against each path below the directory and each
    end of it that begins after a `/`; its `*` matches any `/`; a directory goes with all in it.
    """
    if not artifact.exclude or not local.is_dir():
        return
    for path in sorted(local.rglob("*")):
        inside = (".", *path.relative_to(local).parts)
        ends = ["/".join(inside[start:]) for start in range(len(inside))]
        if any(fnmatchcase(end, pattern) for end in ends for pattern in artifact.exclude):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def write_artifacts(
    artifacts: Sequence[Artifact], collected: Sequence[Collected], directory: Path | None
) -> None:
    """Copy the collected files to `directory`, with a `manifest.json` of each one's outcome.

    `ok`, `empty` (nothing is in `/logs/artifacts`), `failed` (absent or refused), or `skipped`:
    its place overlaps with that of an earlier one.
    """
    if directory is None or not artifacts:
        return
    directory.mkdir(parents=True, exist_ok=True)
    entries = list(_save_entries(artifacts, collected, directory))
    (directory / "manifest.json").write_text(json.dumps(entries, indent=2) + "\n", "ascii")


def _save_entries(
    artifacts: Sequence[Artifact], collected: Sequence[Collected], directory: Path
) -> Iterator[dict[str, Any]]:
    taken: list[PurePosixPath] = [PurePosixPath("manifest.json")]
    for artifact, item in zip(artifacts, collected, strict=True):
        place = PurePosixPath(artifact.destination or artifact.source.lstrip("/"))
        overlaps = any(place == p or p in place.parents or place in p.parents for p in taken)
        is_dir = item.local is not None and item.local.is_dir()
        if overlaps:  # nothing was copied, so the name alone tells the type
            is_dir = not PurePosixPath(artifact.source).suffix
        status = "skipped" if overlaps else _status(artifact, item)
        if not overlaps:
            taken.append(place)
        if not overlaps and item.local is not None:
            _copy(item.local, directory / place)
        yield {
            "source": artifact.source,
            "destination": str(PurePosixPath("artifacts", place)),
            "type": "directory" if is_dir else "file",
            "status": status,
            "service": artifact.service or None,
            "exclude": list(artifact.exclude) if is_dir else [],
        }


def _status(artifact: Artifact, item: Collected) -> str:
    if item.local is None:
        return "failed"
    # Harbor calls no other directory empty, nor this one by another name or in part.
    mounted = artifact.source == ARTIFACTS and not (artifact.destination or artifact.exclude)
    empty = mounted and item.local.is_dir() and not any(item.local.iterdir())
    return "empty" if empty else "ok"


def _copy(local: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if local.is_dir():
        shutil.copytree(local, target, dirs_exist_ok=True, copy_function=_copy_file)
    else:
        _copy_file(local, target)


def _copy_file(source: str | Path, target: str | Path) -> None:
    """Copy one file as it is, but for the operator's secrets."""
    known = redactor()
    if not known:
        shutil.copyfile(source, target, follow_symlinks=False)
        return
    lines = known.lines(longest=_PIECE_BYTES)
    with Path(source).open("rb") as read, Path(target).open("wb") as write:
        while piece := read.read(_PIECE_BYTES):
            write.write(lines.feed(piece))
        write.write(lines.finish())
    shutil.copystat(source, target)
