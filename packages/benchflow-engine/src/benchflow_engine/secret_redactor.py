"""Finds the operator's secrets in what programs print, and masks them.

A redactor knows exact values. It finds each value as it is and as programs print it: reversed, in
hex, in base64 at each of its three alignments, percent-encoded, and escaped in JSON up to three
deep. Base64 and hex may be wrapped. A value that was cut, or that is encoded in another way, is not
found.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import cast
from urllib.parse import quote

from benchflow_contracts.redaction import MASK

LEAST_SECRET = 6
"""Shorter values are not redacted, because they would match everywhere."""

_LEAST_ENCODED = 8
_JSON_DEPTH = 3
_HEAD = 6
# What `base64` and `xxd -p` put between two lines, also inside of JSON.
_WRAP = rb"(?:\s|\\+[rnt])*"


class SecretRedactor:
    """The `Redactor` of exact values."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {line for secret in secrets for line in _lines(secret)}
        forms = {form for secret in known for form in _forms(secret)}
        # The longest first: what is escaped holds what is not.
        ordered = sorted(forms, key=lambda form: (-len(form[0]), form))
        self._forms = [_Form(text, wraps) for text, wraps in ordered]

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._forms)

    def data(self, data: bytes) -> bytes:
        """Return `data` without the secrets."""
        for form in self._forms:
            if form.head in data:
                data = form.pattern.sub(MASK.encode(), data)
        return data

    def text(self, text: str) -> str:
        """Return `text` without the secrets."""
        found = self.data(raw := text.encode("utf-8", "surrogatepass"))
        return text if found is raw else found.decode("utf-8", "surrogatepass")

    def json(self, data: bytes) -> bytes:
        """Return one JSON value without the secrets: still JSON, of the same shape.

        Bytes that are not JSON are redacted as bytes.
        """
        if self.data(data) == data:
            return data
        try:
            value: object = json.loads(data)
        except (ValueError, RecursionError):
            return self.data(data)
        text = json.dumps(self.value(value), ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")

    def value(self, value: object) -> object:
        """Return plain JSON data without the secrets, in its strings and its keys."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in cast("list[object]", value)]
        if isinstance(value, dict):
            items = cast("dict[str, object]", value).items()
            return {self.text(key): self.value(item) for key, item in items}
        return value

    def lines(self, *, longest: int = 65536) -> "RedactedLines":
        """Return a redactor of a stream, in which at most about `longest` bytes wait."""
        return RedactedLines(self.data, longest=longest)


class _Form:
    """One form of a secret, to be found in bytes."""

    def __init__(self, text: bytes, wraps: bool) -> None:
        self.head = text[:_HEAD]
        """The first bytes, for a fast search."""
        self._text = text
        self._wraps = wraps

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        """The whole form. To compile the forms of one secret costs more than a small rollout."""
        return _pattern(self._text, self._wraps)


class RedactedLines:
    """Redacts a stream line by line, independent of the size of its pieces.

    An incomplete line waits for its end. Complete lines wait while a wrapped value may continue in
    the next line. At most about `longest` bytes wait.
    """

    def __init__(self, redact: Callable[[bytes], bytes], *, longest: int) -> None:
        self._redact = redact
        self._longest = longest
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Add a piece, and return the redacted lines that are complete."""
        data = self._held + chunk
        end = _end_of_whole(data)
        if len(data) - end > self._longest:
            end = self._cut(data)
        self._held = data[end:]
        return self._redact(data[:end])

    def _cut(self, data: bytes) -> int:
        """Return where to divide `data`, near its end and not inside a secret."""
        whole, step = self._redact(data), max(1, self._longest // 4)
        for end in range(len(data) - step, 0, -step):
            if self._redact(data[:end]) + self._redact(data[end:]) == whole:
                return end
        return 0

    def finish(self) -> bytes:
        """Return the rest."""
        rest, self._held = self._held, b""
        return self._redact(rest)


_ENCODED = re.compile(rb"\s*[\w+/=-]{4,}\s*")
_ENDS_ENCODED = re.compile(rb"[\w+/=-]{4}\s*\Z")


def _end_of_whole(data: bytes) -> int:
    """Return the end of the complete lines after which no wrapped value continues."""
    end = data.rfind(b"\n") + 1
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        line = data[start:end]
        if _ENDS_ENCODED.search(line) is None:
            return end
        end = start
        if _ENCODED.fullmatch(line) is None:
            return end
    return 0


def _lines(secret: str) -> list[str]:
    """Return the value and, such as for a key in PEM, each of its lines."""
    lines = (line.strip() for line in (secret, *secret.splitlines()))
    return [line for line in lines if len(line) >= LEAST_SECRET]


def _forms(secret: str) -> Iterable[tuple[bytes, bool]]:
    """Yield each form of a secret, and whether it may be wrapped."""
    raw = secret.encode("utf-8", "surrogatepass")
    yield raw, False
    yield raw[::-1], False
    for escaped in _escaped(secret):
        yield escaped.encode("utf-8", "surrogatepass"), False
    for safe in ("", "/"):
        percent = quote(raw, safe=safe)
        for form in (percent, percent.replace("%20", "+"), _lower_percent(percent)):
            yield form.encode(), False
    if len(raw) >= _LEAST_ENCODED // 2:
        yield raw.hex().encode(), True
        yield raw.hex().upper().encode(), True
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            core = _whole_characters(encode(b"\0" * shift + raw), shift, len(raw))
            if len(core) >= _LEAST_ENCODED:
                yield core, True


def _escaped(secret: str) -> Iterable[str]:
    for ascii_only in (True, False):
        text = secret
        for _ in range(_JSON_DEPTH):
            text = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
            yield text
            yield text.replace("/", "\\/")


def _lower_percent(text: str) -> str:
    return re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), text)


def _whole_characters(encoded: bytes, shift: int, size: int) -> bytes:
    """Return the characters that depend on the secret only, not on its neighbours."""
    return encoded[(0, 2, 3)[shift] : (shift + size) * 8 // 6]


def _pattern(text: bytes, wraps: bool) -> re.Pattern[bytes]:
    if not wraps:
        return re.compile(re.escape(text))
    head, rest = text[:_HEAD], text[_HEAD:]
    pieces = [re.escape(head), *(re.escape(rest[i : i + 1]) for i in range(len(rest)))]
    return re.compile(_WRAP.join(pieces))
