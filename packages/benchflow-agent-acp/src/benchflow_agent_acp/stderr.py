"""The agent's stderr: kept on disk up to a cap, its tail in memory."""

from pathlib import Path
from typing import BinaryIO

from benchflow_contracts.process import ByteReader
from benchflow_contracts.redaction import RedactedLines, redactor

_TAIL_BYTES = 4096


class StderrLog:
    """Drains a pipe into a file, by lines. What is beyond the cap is counted, not kept."""

    def __init__(self, path: Path | None, *, max_bytes: int) -> None:
        self._file: BinaryIO | None = path.open("ab", buffering=0) if path else None
        self._room = max_bytes
        self._lines = RedactedLines(redactor().data)
        self._tail = b""
        self.dropped = 0

    async def drain(self, reader: ByteReader) -> None:
        """Read to the end of the stream. May be cancelled and called again."""
        while chunk := await reader.read():
            self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        self._write(self._lines.feed(chunk))

    def _write(self, chunk: bytes) -> None:
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
        kept = chunk[: max(0, self._room)]
        self._room -= len(kept)
        self.dropped += len(chunk) - len(kept)
        if self._file is not None and kept:
            self._file.write(kept)

    def last_lines(self, count: int = 5) -> str:
        """Return the end of what the agent wrote, for an error message."""
        self._write(self._lines.finish())
        lines = self._tail.decode("utf-8", "replace").splitlines()
        return "\n".join(line[:300] for line in lines[-count:])

    def close(self) -> None:
        """Close the file; say at its end what was dropped. Idempotent."""
        if self._file is None:
            return
        self._write(self._lines.finish())
        if self.dropped:
            self._file.write(b"\n[%d more bytes were dropped]\n" % self.dropped)
        self._file.close()
        self._file = None
