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
    """The delimiter without its quotes, which names the file, too."""
    raw: str
    """The lines as they are there."""
    expands: bool
    """Whether variables in it are resolved: nothing of its delimiter is quoted."""
    chomps: bool

    @property
    def text(self) -> str:
        """The lines, without leading tabs after `<<-`."""
        return _TABS.sub("", self.raw) if self.chomps else self.raw

    def content(self, words: Words) -> str:
        """Return what COPY writes."""
        return words.document(self.text) if self.expands else self.text


def begun(text: str, where: str) -> list[Heredoc]:
    """Return the documents that an instruction begins, still empty, in their order."""
    try:
        words = Words({}, where).raw(text)
    except TaskError:
        return []  # a quote that is not closed is the shell's to judge
    return [found for word in words if (found := heredoc_start(word, where)) is not None]


def heredoc_start(word: str, where: str) -> Heredoc | None:
    """Return the document that a single word begins."""
    match = _BEGIN.fullmatch(word)
    words = Words({}, where)
    if match is None or len(words.raw(match[2])) != 1:
        return None
    name = words.one(match[2])
    if not name or name in {".", ".."} or not set("$/\0").isdisjoint(match[2]):
        raise TaskError(
            f"{match[2][:80]!r} cannot end a here-document",
            where=where,
            hint="write a word such as EOF",
        )
    # An escape is no quote, other than in a shell.
    return Heredoc(name, "", expands=set("'\"").isdisjoint(match[2]), chomps=bool(match[1]))


def read(document: Heredoc, lines: Iterator[tuple[int, str]], where: str) -> tuple[Heredoc, int]:
    """Take a document's lines up to its delimiter; return it with the number of that line.

    Raises:
        TaskError: It does not end.
    """
    taken = list[str]()
    for number, line in lines:
        bare = line.removesuffix("\r")
        if (bare.lstrip("\t") if document.chomps else bare) == document.name:
            raw = "".join(f"{each}\n" for each in taken)
            return replace(document, raw=raw), number
        taken.append(line)
    raise TaskError(f"the here-document {document.name[:80]!r} does not end", where=where)


def command(
    text: str, documents: tuple[Heredoc, ...], shell: tuple[str, ...], where: str
) -> tuple[str, ...]:
    """Return what `RUN text` with documents runs.

    Alone, a document is a script: of the interpreter that its first line names, else of the
    shell. With a command before it, the shell itself reads it.
    """
    if heredoc_start(text, where) is None:
        whole = "".join(f"\n{each.raw}{each.name}" for each in documents)
        return (*shell, text + whole)
    script = documents[0].text
    # Behind the tabs of `<<-` it is none.
    if not documents[0].raw.startswith("#!"):
        return (*shell, script)
    # As the kernel splits it: a program, and the rest as one argument.
    interpreter = script[2:].partition("\n")[0].strip().split(maxsplit=1)
    path = f"{_PLACE}{documents[0].name}"
    return ("/bin/sh", "-c", _SCRIPT, "sh", path, script, *interpreter, path)
