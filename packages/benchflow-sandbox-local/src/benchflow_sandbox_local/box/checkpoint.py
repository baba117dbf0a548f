"""Taking a live image of one box: its files are pinned, its processes written down.

A box with a small upper directory is kept: it goes on as it was, and the image gets a copy
of the directory. Another box ends, and its very directory becomes a layer of the image.
"""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import attributes, engine_log, hard_links, numbers, owners, pins, wire
from .engine import Dump, Engine, EngineError
from .refusals import refuse_uncarried
from .workspace import Workspace

_EOWNERDEAD = 130

_STAND_IN = b"link_remap."
"""The name of a link that the engine makes to a file whose own name is gone."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One image, as it is requested."""

    space: Workspace
    request: dict[str, Any]

    def take(self, reply: socket.socket) -> None:
        """Say when the engine is ready, wait for a word, and say what was made.

        Raises:
            OSError: It failed, and nothing of it is left. What the box is then: see `Dump`.
        """
        try:
            with self._dump() as dump:
                wire.send(reply, {"ok": True})
                makers: list[list[int]] = _await_word(reply)["makers"]
                # What a box can make fail comes while its processes still live.
                hard_links.complete(self._merged, self._overlay_work)
                keep = pins.pin(self._upper, self._merged).small
                copied = self._write(dump, makers, keep=keep)
            if keep and copied is None:
                self._forget()
                with self._dump() as dump:
                    self._write(dump, makers, keep=False)
        except BaseException:
            self._forget()
            raise
        size = self.space.image_bytes(self.request["image"])
        wire.send(reply, {"ok": True, "bytes": size, "copied": copied})

    def _dump(self) -> Dump:
        engine = Engine.of(self.request, self.space.cache)
        return Dump(engine, self.request, self._merged, self._image)

    def _write(self, dump: Dump, makers: list[list[int]], *, keep: bool) -> int | None:
        """Write all down; return the bytes of the copy, when that is all that there was."""
        request, copied = self.request, None
        refuse_uncarried(request["freezer"])
        numbers.note(request["freezer"], self._image)
        owners.write_table(self._image, makers)
        attributes.note(request["freezer"], self._image)
        dump.begin(keep=keep)
        if keep:
            # Beside the engine: nothing in the box runs, and what it reads is not changed.
            copied = self.space.copy_upper(request["family"], request["box"], request["layer"])
        dump.finish(request["seconds"])
        if keep:
            engine_log.refuse_unknown(self._image)
        else:
            self._check_what_is_left()
        # The engine has removed its links from the kept box again, and a child needs them.
        return None if self._has_stand_ins() else copied

    def _check_what_is_left(self) -> None:
        """Do at once what is otherwise done when the box runs on: it comes back by this image."""
        try:
            engine_log.refuse_unknown(self._image)
            numbers.find(self._image, self.request["engine"]["preload"])
        except Exception as error:
            raise EngineError(_EOWNERDEAD, f"{error}, and the box has ended") from error

    def _has_stand_ins(self) -> bool:
        return _STAND_IN in Path(self._image, "files.img").read_bytes()

    def _forget(self) -> None:
        self.space.remove_image(self.request["image"])
        self.space.remove_layer(self.request["family"], self.request["layer"])

    @property
    def _image(self) -> str:
        return self.space.image(self.request["image"])

    @property
    def _upper(self) -> str:
        return f"{self.space.root}/{self.request['family']}/u-{self.request['box']}"

    @property
    def _overlay_work(self) -> str:
        return f"{self.space.root}/{self.request['family']}/w-{self.request['box']}"

    @property
    def _merged(self) -> str:
        return f"{self.space.root}/{self.request['family']}/m-{self.request['box']}"


def _await_word(reply: socket.socket) -> dict[str, Any]:
    if (received := wire.receive(reply)) is None:
        raise InterruptedError("the runner has given this request up")
    return received[0]
