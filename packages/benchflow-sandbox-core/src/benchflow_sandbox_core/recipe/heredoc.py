"""Here-documents of a Dockerfile, as BuildKit's frontend 1.4 and later read them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchflow_contracts.errors import TaskError

from .words import Words

_BEGIN = re.compile(r"\d*<<(-?)([^<]+)")
_TABS = re.compile(r"^\t+", re.MULTILINE)
_SCRIPT = 'printf %s "$2" >"$1" && shift 2 && exec "$@"'
_PLACE = "/dev/shm/"  # noqa: S108 - of one RUN, whose layer does not have it


@dataclass(frozen=True, slots=True)
class Heredoc:
    """One here-document."""

    name: str
    """The delimiter without its quotes. It is also the file name."""
    raw: str
    """The lines as written."""
    expands: bool
    """Whether variables are resolved: only if the delimiter is not quoted."""
    chomps: bool

    @property
    def text(self) -> str:
        """The lines, without leading tabs after `<<-`."""
        return _TABS.sub("", self.raw) if self.chomps else self.raw

    def content(self, words: Words) -> str:
        """Return the bytes that COPY writes."""
        return words.document(self.text) if self.expands else self.text


def heredocs_of(text: str, where: str) -> list[Heredoc]:
    """Return the documents that an instruction starts, in order. They have no lines yet."""
    try:
        words = Words({}, where).raw(text)
    except TaskError:
        return []  # the shell reports an unclosed quote
    return [start for word in words if (start := heredoc_start(word, where)) is not None]


def heredoc_start(word: str, where: str) -> Heredoc | None:
    """Return the document that a single word starts."""
    match = _BEGIN.fullmatch(word)
    words = Words({}, where)
    if match is None or len(words.raw(match[2])) != 1:
        return None
    name = words.resolve(match[2])
    if not name or name in {".", ".."} or not set("$/\0").isdisjoint(match[2]):
        raise TaskError(
            f"{match[2][:80]!r} cannot end a here-document",
            where=where,
            hint="write a word such as EOF",
        )
    # Unlike in a shell, an escape is not a quote.
    return Heredoc(name, "", expands=set("'\"").isdisjoint(match[2]), chomps=bool(match[1]))


def read(document: Heredoc, lines: Iterator[tuple[int, str]], where: str) -> tuple[Heredoc, int]:
    """Read a document's lines up to its delimiter; return it with the line number.

    Raises:
        TaskError: The delimiter is missing.
    """
    content = list[str]()
    for number, line in lines:
        bare = line.removesuffix("\r")
        if (bare.lstrip("\t") if document.chomps else bare) == document.name:
            raw = "".join(f"{part}\n" for part in content)
            return replace(document, raw=raw), number
        content.append(line)
    raise TaskError(f"the here-document {document.name[:80]!r} does not end", where=where)


def command(
    text: str, documents: tuple[Heredoc, ...], shell: tuple[str, ...], where: str
) -> tuple[str, ...]:
    """Return the command of `RUN text` with documents.

    A document alone is a script, run by the interpreter of its first line or by the shell.
    With a command before it, the shell reads the document.
    """
    if heredoc_start(text, where) is None:
        appended = "".join(f"\n{document.raw}{document.name}" for document in documents)
        return (*shell, text + appended)
    script = documents[0].text
    # After the tabs of `<<-` it is not an interpreter line.
    if not documents[0].raw.startswith("#!"):
        return (*shell, script)
    # The kernel splits an interpreter line into a program and one argument.
    interpreter = script[2:].partition("\n")[0].strip().split(maxsplit=1)
    path = f"{_PLACE}{documents[0].name}"
    return ("/bin/sh", "-c", _SCRIPT, "sh", path, script, *interpreter, path)
