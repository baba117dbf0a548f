"""The grammar of the fake shell: a small part of POSIX sh.

Understood: simple commands with quotes, `$NAME`, `$?`, `$$`, `$!`, assignments, the
redirections `<`, `>`, `>>`, `2>`, `2>>`, `2>&1` and `>&2`, the operators `;`, `&`,
`&&`, `||` and `|`, `( )`, `while` and `if`. Anything else is a syntax error, not a
silent difference.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


class FakeShellSyntaxError(Exception):
    """The text is not in the subset of the fake shell."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word: literal text, or the name of a variable."""

    text: str
    variable: bool = False
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """One word before expansion."""

    parts: tuple[Part, ...]

    @property
    def literal(self) -> str | None:
        """The text of a word without quotes and variables, else `None`."""
        if len(self.parts) != 1 or self.parts[0].variable or self.parts[0].quoted:
            return None
        return self.parts[0].text


@dataclass(frozen=True, slots=True)
class Operator:
    """A separator, a control operator or a redirection."""

    text: str


Token = Word | Operator


@dataclass(frozen=True, slots=True)
class Redirect:
    """The redirection of one stream of a command."""

    operator: str
    target: Word | None


@dataclass(frozen=True, slots=True)
class Simple:
    """A program with its words and redirections."""

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Compound:
    """`while`, `if`, or a subshell."""

    kind: Literal["while", "if", "group"]
    condition: "Script | None"
    body: "Script"
    otherwise: "Script | None" = None
    redirects: tuple[Redirect, ...] = ()


Command = Simple | Compound


@dataclass(frozen=True, slots=True)
class Link:
    """A pipeline, and the operator between the earlier pipeline and this one."""

    joiner: Literal["", "&&", "||"]
    pipeline: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """A list of pipelines, in the foreground or in the background."""

    links: tuple[Link, ...]
    background: bool = False


Script = tuple[Statement, ...]

_OPERATORS = ("2>&1", "2>>", ">&2", "1>&2", "&&", "||", ">>", "2>", ";", "&", "|", "(", ")")
_REDIRECTS = frozenset({"<", ">", ">>", "2>", "2>>", "2>&1", ">&2", "1>&2"})
_TOKEN = re.compile(
    r"(?P<space>[ \t]+|\\\n|(?<![^\s;&|()])#[^\n]*)"
    r"|(?P<op>" + "|".join(re.escape(op) for op in (*_OPERATORS, "<", ">", "\n")) + ")"
)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*|[?$!#]|\d))")
_REFUSED = re.compile(r"\$[({@*]|`")
_PLAIN = re.compile(r"[^\s;&|()<>'\"\\$`]+")


def tokenize(text: str) -> list[Token]:
    """Split shell text into words and operators."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        # `a2>b` is the word `a2`, but a lone `2>` is a redirection.
        if found:
            at = found.end()
            if found["op"]:
                tokens.append(Operator(found["op"]))
            continue
        word, at = _word(text, at)
        tokens.append(word)
    return tokens


def _word(text: str, at: int) -> tuple[Word, int]:
    parts: list[Part] = []
    while at < len(text) and not (text[at].isspace() or text[at] in ";&|()<>"):
        if text[at] == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise FakeShellSyntaxError("unterminated quoted string")
            parts.append(Part(text[at + 1 : end], quoted=True))
            at = end + 1
        elif text[at] == '"':
            at = _double_quoted(text, at + 1, parts)
        elif text[at] == "\\":
            parts.append(Part(text[at + 1 : at + 2], quoted=True))
            at += 2
        else:
            at = _unquoted(text, at, parts, quoted=False)
    return Word(tuple(parts)), at


def _double_quoted(text: str, at: int, parts: list[Part]) -> int:
    parts.append(Part("", quoted=True))
    while at < len(text):
        if text[at] == '"':
            return at + 1
        if text[at] == "\\" and text[at + 1 : at + 2] in {'"', "\\", "$", "`"}:
            parts.append(Part(text[at + 1], quoted=True))
            at += 2
        elif text[at] in "$`":
            at = _unquoted(text, at, parts, quoted=True)
        else:
            parts.append(Part(text[at], quoted=True))
            at += 1
    raise FakeShellSyntaxError("unterminated quoted string")


def _unquoted(text: str, at: int, parts: list[Part], *, quoted: bool) -> int:
    variable = _VARIABLE.match(text, at)
    if variable:
        parts.append(Part(variable[1] or variable[2], variable=True, quoted=quoted))
        return variable.end()
    if _REFUSED.match(text, at):
        raise FakeShellSyntaxError(f"the fake shell does not expand {text[at : at + 2]!r}")
    plain = _PLAIN.match(text, at)
    piece = plain[0] if plain else text[at]
    parts.append(Part(piece, quoted=quoted))
    return at + len(piece)


class Parser:
    """Recursive descent over the tokens of one script."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def parse(self) -> Script:
        """Return the whole script."""
        script = self._script(frozenset())
        if self._at < len(self._tokens):
            raise FakeShellSyntaxError(f"unexpected {self._peek()!r}")
        return script

    def _script(self, ends: frozenset[str]) -> Script:
        statements: list[Statement] = []
        while True:
            while self._take(";") or self._take("\n"):
                pass
            if self._at >= len(self._tokens) or self._peek() in ends:
                return tuple(statements)
            if self._peek() == ")":
                return tuple(statements)
            links = self._links()
            statements.append(Statement(links, background=self._take("&")))

    def _links(self) -> tuple[Link, ...]:
        links = [Link("", self._pipeline())]
        while True:
            if self._take("&&"):
                links.append(Link("&&", self._pipeline()))
            elif self._take("||"):
                links.append(Link("||", self._pipeline()))
            else:
                return tuple(links)

    def _pipeline(self) -> tuple[Command, ...]:
        while self._take("\n"):
            pass
        commands = [self._command()]
        while self._take("|"):
            commands.append(self._command())
        return tuple(commands)

    def _command(self) -> Command:
        head = self._peek()
        if head == "(":
            self._take("(")
            body = self._script(frozenset({")"}))
            self._need(")")
            return Compound("group", None, body, redirects=self._redirects())
        if head == "while":
            return self._compound("while", "do", "done")
        if head == "if":
            return self._compound("if", "then", "fi")
        return self._simple()

    def _compound(self, kind: Literal["while", "if"], opener: str, closer: str) -> Compound:
        self._need(kind)
        condition = self._script(frozenset({opener}))
        self._need(opener)
        body = self._script(frozenset({closer, "else"}))
        otherwise = None
        if kind == "if" and self._take("else"):
            otherwise = self._script(frozenset({closer}))
        self._need(closer)
        return Compound(kind, condition, body, otherwise, self._redirects())

    def _simple(self) -> Simple:
        words: list[Word] = []
        redirects: list[Redirect] = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if isinstance(token, Word):
                words.append(token)
                self._at += 1
            elif token.text in _REDIRECTS:
                redirects.append(self._redirect())
            else:
                break
        if not words and not redirects:
            raise FakeShellSyntaxError(f"unexpected {self._peek()!r}")
        return Simple(tuple(words), tuple(redirects))

    def _redirects(self) -> tuple[Redirect, ...]:
        found: list[Redirect] = []
        while self._peek() in _REDIRECTS:
            found.append(self._redirect())
        return tuple(found)

    def _redirect(self) -> Redirect:
        operator = self._tokens[self._at]
        assert isinstance(operator, Operator)
        self._at += 1
        if "&" in operator.text:
            return Redirect(operator.text, None)
        target = self._tokens[self._at] if self._at < len(self._tokens) else None
        if not isinstance(target, Word):
            raise FakeShellSyntaxError(f"{operator.text} needs a file")
        self._at += 1
        return Redirect(operator.text, target)

    def _peek(self) -> str | None:
        if self._at >= len(self._tokens):
            return None
        token = self._tokens[self._at]
        return token.literal if isinstance(token, Word) else token.text

    def _take(self, text: str) -> bool:
        if self._peek() != text:
            return False
        self._at += 1
        return True

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise FakeShellSyntaxError(f"expected {text!r}, got {self._peek()!r}")


def parse(text: str) -> Script:
    """Parse `text` into a script."""
    return Parser(tokenize(text)).parse()
