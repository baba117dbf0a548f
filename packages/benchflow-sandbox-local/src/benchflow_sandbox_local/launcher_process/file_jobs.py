"""The requests that copy, read or delete files. A child process serves each one."""

import socket
from collections.abc import Callable
from typing import Any

from benchflow_sandbox_local.launcher_process.criu.checkpoint import CriuCheckpoint
from benchflow_sandbox_local.launcher_process.inspection.report import inspect
from benchflow_sandbox_local.launcher_process.layers.digest import image_digest, memory_digest
from benchflow_sandbox_local.launcher_process.layers.workspace import Workspace

from . import wire
from .criu import file_numbers
from .layers import skeleton

FileJob = Callable[[dict[str, Any], socket.socket], None]
"""Serves one request."""


class FileJobs:
    """Serves file requests in one workspace, by the name of the operation."""

    def __init__(self, workspace: Workspace) -> None:
        self._space = workspace

    def named(self, operation: str) -> FileJob:
        """Return the function of an operation; raise `KeyError` for an unknown one."""
        return {
            "base": self._base,
            "seal": self._seal,
            "dump": self._dump,
            "inspect": inspect,
            "identify": self._identify,
            "forget": self._forget,
            "take": self._take,
            "save": self._save,
            "keep": self._keep,
            "load": self._load,
            "remove": self._remove,
            "drop": self._drop,
        }[operation]

    def _base(self, request: dict[str, Any], reply: socket.socket) -> None:
        space = self._space
        directory = space.base(request["name"])
        built = skeleton.build(directory, request, space.opaque, rooted=space.rooted)
        wire.send(reply, built)

    def _seal(self, request: dict[str, Any], reply: socket.socket) -> None:
        size = self._space.seal(request)
        wire.send(reply, {"ok": True, "bytes": size})
        family, layer = request["family"], request["layer"]
        digest = self._space.digest(family, layer, request["parent"])
        traits = self._space.traits(family, layer)
        wire.send(reply, {"ok": True, "digest": digest, "traits": traits})

    def _dump(self, request: dict[str, Any], reply: socket.socket) -> None:
        CriuCheckpoint(self._space, request).take(reply)

    def _identify(self, request: dict[str, Any], reply: socket.socket) -> None:
        files = self._space.digest(request["family"], request["layer"], request["parent"])
        image = self._space.image(request["image"])
        file_numbers.find(image, request.get("library"))
        digest = image_digest(image, files)
        wire.send(reply, {"ok": True, "files": files, "digest": digest})

    def _take(self, request: dict[str, Any], reply: socket.socket) -> None:
        name = request["image"]
        self._space.take_image(request["box"], name)
        wire.send(reply, {"ok": True, "bytes": self._space.image_bytes(name)})

    def _forget(self, request: dict[str, Any], reply: socket.socket) -> None:
        self._space.remove_image(request["image"])
        wire.send(reply, {"ok": True})

    def _save(self, request: dict[str, Any], reply: socket.socket) -> None:
        image = request["image"]
        self._space.copy_out(request["layers"], image, request["to"])
        memory = "" if image is None else memory_digest(self._space.image(image))
        wire.send(reply, {"ok": True, "memory": memory})

    def _keep(self, request: dict[str, Any], reply: socket.socket) -> None:
        self._space.copy_upper_out(request["family"], request["box"], request["to"])
        wire.send(reply, {"ok": True})

    def _load(self, request: dict[str, Any], reply: socket.socket) -> None:
        family, names, image = request["family"], request["layers"], request["image"]
        sized = None if image is None else (image, request["image_bytes"])
        self._space.copy_in(request["source"], family, names, sized)
        digests: list[str] = []
        for name in reversed(names):
            parent = digests[-1] if digests else request["parent"]
            digests.append(self._space.digest(family, name, parent))
        digests.reverse()
        whole, memory, size = digests[0], "", 0
        if image is not None:
            place, size = self._space.image(image), self._space.image_bytes(image)
            whole, memory = image_digest(place, whole), memory_digest(place)
        found = {"digests": digests, "digest": whole, "memory": memory, "bytes": size}
        wire.send(reply, {"ok": True, **found})

    def _remove(self, request: dict[str, Any], reply: socket.socket) -> None:
        self._space.remove_box(request["family"], request["box"])
        wire.send(reply, {"ok": True})

    def _drop(self, request: dict[str, Any], reply: socket.socket) -> None:
        self._space.remove_layer(request["family"], request["layer"])
        wire.send(reply, {"ok": True})
