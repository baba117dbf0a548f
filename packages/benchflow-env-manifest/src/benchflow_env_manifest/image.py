"""Compute the sandbox's spec from a manifest."""

import json
import re
from pathlib import Path

from benchflow_contracts import ManifestError, SandboxSpec

from .manifest import Manifest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_ENTRYPOINT_BYTES = 4096


def image_for(manifest: Manifest, spec: SandboxSpec) -> str:
    """Return the image: the task's own image if it contains the seed data."""
    per_task = manifest.environment.task_selection.mechanism == "image"
    return spec.image if per_task and spec.image else manifest.image


def ports_for(manifest: Manifest, spec: SandboxSpec) -> tuple[int, ...]:
    """Return the spec's ports and those of the manifest and its services, once each."""
    environment = manifest.environment
    services = (service.port for service in environment.services)
    return tuple(dict.fromkeys((*spec.ports, *environment.ports, *services)))


def entrypoint_of(images: Path, image: str) -> tuple[str, ...] | None:
    """Return the start command of an image directory, or `None` without one.

    A root file system has no metadata. So the file `entrypoint` beside it contains the
    absolute path of a program inside, in one line, or a JSON array of arguments.

    Raises:
        ManifestError: The file contains something else.
    """
    name = re.split("[@:]", image.rsplit("/", 1)[-1], maxsplit=1)[0]
    path = images / name / "entrypoint"
    if not _NAME.fullmatch(name) or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_ENTRYPOINT_BYTES + 1).decode("utf-8").strip()
        words = json.loads(text) if text.startswith("[") else text.splitlines()[:2]
    except (OSError, ValueError, RecursionError) as exc:
        raise _malformed(path, str(exc)) from None
    command = [word for word in words if isinstance(word, str) and "\0" not in word]
    if len(text) > _MAX_ENTRYPOINT_BYTES or not command or len(command) != len(words):
        raise _malformed(path, "neither a path nor an array of arguments")
    if not command[0].startswith("/") or (len(command) > 1 and not text.startswith("[")):
        raise _malformed(path, "not one absolute path")
    return tuple(command)


def _malformed(path: Path, reason: str) -> ManifestError:
    return ManifestError(
        f"not an entrypoint: {reason}",
        where=str(path),
        hint='write one absolute path, or a JSON array such as ["/bin/start", "--all"]',
    )
