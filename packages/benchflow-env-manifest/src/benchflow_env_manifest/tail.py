"""The end of a service's output."""


class Tail:
    """Keeps the last bytes written to it, and counts them all."""

    def __init__(self, max_bytes: int = 8192) -> None:
        self._max = max_bytes
        self._kept = bytearray()
        self.total = 0

    def write(self, data: bytes) -> None:
        """Append; what falls out of the window is forgotten."""
        self.total += len(data)
        self._kept += data
        del self._kept[: -self._max]

    def text(self) -> str:
        """Return the kept bytes as text, without control characters but line ends."""
        text = self._kept.decode("utf-8", "replace").strip()
        return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)
