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

    def find(self, operation: str) -> FileJob:
        """Return the function of an operation; raise `KeyError` for an unknown operation."""
        return {
            "build_base": self._build_base,
            "seal": self._seal,
            "dump": self._dump,
            "inspect": inspect,
            "digest_image": self._digest_image,
            "remove_image": self._remove_image,
            "take_image": self._take_image,
            "save": self._save,
            "copy_upper": self._copy_upper,
            "load": self._load,
            "remove_box": self._remove_box,
            "remove_layer": self._remove_layer,
        }[operation]

    def _build_base(self, request: dict[str, Any], reply: socket.socket) -> None:
        space = self._space
        directory = space.base(request["name"])
        wire.send(reply, skeleton.build(directory, request, space.opaque, rooted=space.rooted))

    def _seal(self, request: dict[str, Any], reply: socket.socket) -> None:
        size = self._space.seal(request)
        wire.send(reply, {"ok": True, "bytes": size})
        pool, layer = request["pool"], request["layer"]
        digest = self._space.digest(pool, layer, request["parent"])
        traits = self._space.traits(pool, layer)
        wire.send(reply, {"ok": True, "digest": digest, "traits": traits})

    def _dump(self, request: dict[str, Any], reply: socket.socket) -> None:
        CriuCheckpoint(self._space, request).write(reply)

    def _digest_image(self, request: dict[str, Any], reply: socket.socket) -> None:
        files = self._space.digest(request["pool"], request["layer"], request["parent"])
        image = self._space.image(request["image"])
        file_numbers.find(image, request.get("library"))
        digest = image_digest(image, files)
        wire.send(reply, {"ok": True, "files": files, "digest": digest})

    def _take_image(self, request: dict[str, Any], reply: socket.socket) -> None:
        name = request["image"]
        self._space.take_image(request["box"], name)
        wire.send(reply, {"ok": True, "bytes": self._space.image_bytes(name)})

    def _remove_image(self, request: dict[str, Any], reply: socket.socket) -> None:
        self._space.remove_image(request["image"])
        wire.send(reply, {"ok": True})

    def _save(self, request: dict[str, Any], reply: socket.socket) -> None:
        image = request["image"]
        self._space.copy_out(request["layers"], image, request["to"])
        memory = "" if image is None else memory_digest(self._space.image(image))
        wire.send(reply, {"ok": True, "memory": memory})

    def _copy_upper(self, request: dict[str, Any], reply: socket.socket) -> None:
        self._space.copy_upper_out(request["pool"], request["box"], request["to"])
        wire.send(reply, {"ok": True})

    def _load(self, request: dict[str, Any], reply: socket.socket) -> None:
        pool, names, image = request["pool"], request["layers"], request["image"]
        image_and_size = None if image is None else (image, request["image_bytes"])
        self._space.copy_in(request["source"], pool, names, image_and_size)
        digests: list[str] = []
        for name in reversed(names):
            parent = digests[-1] if digests else request["parent"]
            digests.append(self._space.digest(pool, name, parent))
        digests.reverse()
        digest, memory, size = digests[0], "", 0
        if image is not None:
            path, size = self._space.image(image), self._space.image_bytes(image)
            digest, memory = image_digest(path, digest), memory_digest(path)
        loaded = {"digests": digests, "digest": digest, "memory": memory, "bytes": size}
        wire.send(reply, {"ok": True, **loaded})

    def _remove_box(self, request: dict[str, Any], reply: socket.socket) -> None:
        self._space.remove_box(request["pool"], request["box"])
        wire.send(reply, {"ok": True})

    def _remove_layer(self, request: dict[str, Any], reply: socket.socket) -> None:
        self._space.remove_layer(request["pool"], request["layer"])
        wire.send(reply, {"ok": True})
