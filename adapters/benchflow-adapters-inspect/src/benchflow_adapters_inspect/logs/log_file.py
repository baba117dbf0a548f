"""A log of Inspect on disk: `.eval`, a zip of JSON members, or `.json`.

Nothing in the file is trusted: members are read up to a size, and are checked to be JSON objects.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import StoreError, UsageError

_MEMBER_BYTES: Final = 512 * 1024 * 1024
"""Largest size of one member, after decompression."""
_ZSTD: Final = 93
"""Inspect compresses by zstd, which `zipfile` reads from Python 3.14 on."""
_LOCAL_HEADER: Final = 30
_MAX_DIGITS: Final = 20
"""Digits by which Inspect compares ids that are numbers."""

Json = dict[str, Any]


class LogFile:
    """Reads the header at once, and the samples one at a time.

    Raises:
        StoreError: The file is not a log, is damaged, or has a member that is too large.
        UsageError: The file needs the package `zstandard`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._document: Json | None = None
        self._archive: zipfile.ZipFile | None = None
        try:
            if zipfile.is_zipfile(path):
                self._archive = zipfile.ZipFile(path)
                names = set(self._archive.namelist())
                start = "header.json" if "header.json" in names else "_journal/start.json"
                self.header = self._member(start)
            else:
                self._document = _object(path.read_bytes(), str(path))
                self.header = self._document
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise StoreError(f"{path} is not a log of Inspect: {error}") from error
        if not isinstance(self.header.get("eval"), dict):
            raise StoreError(f"{path} is not a log of Inspect: it has no object `eval`")

    def samples(self) -> Iterator[Json]:
        """Yield the samples: of an archive by epoch, then by id, as Inspect's reader does.

        An archive has them in the order in which they ended. A JSON file has them in order.
        """
        if self._archive is None:
            samples: object = (self._document or {}).get("samples")
            rows = cast("list[object]", samples) if isinstance(samples, list) else []
            yield from (cast("Json", each) for each in rows if isinstance(each, dict))
            return
        # A sample that was run again is written again: the last member of a name counts.
        for name in sorted({*self._archive.namelist()}, key=_place):
            if name.startswith("samples/") and name.endswith(".json"):
                yield self._member(name)

    def _member(self, name: str) -> Json:
        assert self._archive is not None
        where = f"{self.path}:{name}"
        info = self._archive.getinfo(name)
        if info.file_size > _MEMBER_BYTES:
            raise StoreError(f"{where} has {info.file_size} bytes, more than {_MEMBER_BYTES}")
        try:
            data = self._zstd(info) if info.compress_type == _ZSTD else self._archive.read(info)
        except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
            raise StoreError(f"{where} cannot be read: {error}") from error
        return _object(data, where)

    def _zstd(self, info: zipfile.ZipInfo) -> bytes:
        try:
            from .zstd import decompress  # noqa: PLC0415 - of the extra
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{self.path} is compressed by zstd",
                hint="pip install 'benchflow-adapters-inspect[logs]'",
            ) from error
        with self.path.open("rb") as file:
            file.seek(info.header_offset + _LOCAL_HEADER - 4)
            lengths = file.read(4)
            name, extra = (int.from_bytes(lengths[at : at + 2], "little") for at in (0, 2))
            file.seek(name + extra, 1)
            packed = file.read(info.compress_size)
        return decompress(packed, info.file_size)


def _place(name: str) -> tuple[int, str]:
    """Return where the sample of a member `samples/ID_epoch_N.json` comes."""
    identity, _, epoch = name.removesuffix(".json").removeprefix("samples/").rpartition("_epoch_")
    number = identity.isascii() and identity.isdecimal()
    digits = epoch if epoch.isascii() and epoch.isdecimal() else "0"
    return int(digits[:_MAX_DIGITS]), identity.zfill(_MAX_DIGITS) if number else identity


def _object(data: bytes, where: str) -> Json:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{where} is not a JSON object")
    return cast("Json", value)
