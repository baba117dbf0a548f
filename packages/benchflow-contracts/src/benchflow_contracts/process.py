"""A running process of a sandbox, and its pipes."""

from typing import Protocol


class ByteReader(Protocol):
    """The reading end of a pipe."""

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Return at least one byte, or `b""` at the end of the stream."""
        ...

    def waiting(self) -> int:
        """Count the bytes that `read` would return without waiting, wherever they are buffered.

        A provider without live snapshots may return 0 at any time.
        """
        ...


class ByteWriter(Protocol):
    """The writing end of a pipe."""

    async def write(self, data: bytes) -> None:
        """Write all of `data`; raise `SandboxError` if the reader is gone."""
        ...

    async def aclose(self) -> None:
        """Close this end, so that the reader gets the end of the stream. Idempotent."""
        ...


class Process(Protocol):
    """A running process with live pipes, the leader of its own process group."""

    @property
    def id(self) -> str:
        """Unique within the sandbox; the same in every child of a live snapshot."""
        ...

    @property
    def stdin(self) -> ByteWriter:
        """The pipe that the process reads."""
        ...

    @property
    def stdout(self) -> ByteReader:
        """The pipe that the process writes."""
        ...

    @property
    def stderr(self) -> ByteReader:
        """The pipe of the error output. The caller must drain it."""
        ...

    async def wait(self) -> int:
        """Wait for the end, and return the exit code, as in `ExecResult.exit_code`."""
        ...

    async def kill(self) -> None:
        """Kill the whole process group. Returns when the leader is dead. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Kill the process if it still runs, and release the pipes. Idempotent."""
        ...
