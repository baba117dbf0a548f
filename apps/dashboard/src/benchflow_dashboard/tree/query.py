"""The URL of a rollout's page: every choice of the reader is in it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar, get_args
from urllib.parse import urlencode

from .measure import MODES, Mode

Tab = Literal["steps", "reward", "evidence", "cost", "events"]
TABS: Final[tuple[Tab, ...]] = get_args(Tab)
PartKind = Literal["prompt", "reasoning", "message", "action", "input", "output", "raw"]
PARTS: Final[tuple[PartKind, ...]] = get_args(PartKind)
"""The parts of a step that can be hidden. `input` and `output` are those of tools."""

_Text = TypeVar("_Text", bound=str)
_LONGEST = 200
"""The maximum number of characters of an id in a URL."""
_MOST_FOLDS = 64
_LONGEST_LIST = 400


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """The choices. A value that is not known is the default."""

    sel: str | None = None
    """The selected node."""
    a: str | None = None
    """The node that a comparison starts from, as `n3` or `ROLLOUT:n3`."""
    tab: Tab = "steps"
    mode: Mode = "value"
    fold: bool | None = None
    """Whether chains are folded; `None` folds them in a tree that is not small."""
    opened: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    hide: frozenset[PartKind] = frozenset({"raw"})
    full: bool = False
    """Whether long texts are whole."""
    page: int = 0
    """Of the events of a node."""
    file: str | None = None
    """The id of the file whose text the evidence shows."""
    listed: str = ""
    """The query of the list of runs that the reader came from."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "RolloutQuery":
        """Read the parameters of a URL."""
        hide = given.get("hide")
        page = given.get("page", "")
        return cls(
            sel=_name(given.get("sel", "")),
            a=_name(given.get("a", "")),
            tab=_one_of(TABS, given.get("tab"), "steps"),
            mode=_one_of(MODES, given.get("mode"), "value"),
            fold={"0": False, "1": True}.get(given.get("fold", "")),
            opened=_names(given.get("open", "")),
            closed=_names(given.get("shut", "")),
            hide=_DEFAULT.hide if hide is None else _parts(hide),
            full=given.get("full") == "1",
            page=int(page) if page.isascii() and page.isdigit() and len(page) < 6 else 0,
            file=_name(given.get("file", "")),
            listed=given.get("list", "")[:_LONGEST_LIST],
        )

    def parameters(self) -> dict[str, str]:
        """Return the parameters that differ from the defaults."""
        found = {
            "sel": self.sel or "",
            "a": self.a or "",
            "tab": "" if self.tab == "steps" else self.tab,
            "mode": "" if self.mode == "value" else self.mode,
            "fold": "" if self.fold is None else str(int(self.fold)),
            "open": ",".join(self.opened),
            "shut": ",".join(self.closed),
            "full": "1" if self.full else "",
            "page": str(self.page) if self.page else "",
            "file": self.file or "",
            "list": self.listed,
        }
        shown = {name: value for name, value in found.items() if value}
        if self.hide != _DEFAULT.hide:
            shown["hide"] = ",".join(sorted(self.hide))
        return shown

    def url(self, **changes: Any) -> str:  # noqa: ANN401 - the fields of this class
        """Return the query part of a URL with some choices changed: `?sel=n3&tab=cost`."""
        if "sel" in changes or "tab" in changes:
            changes.setdefault("file", None)
        return "?" + urlencode(replace(self, **changes).parameters())

    def toggling_url(self, part: PartKind) -> str:
        """Return the URL that shows or hides a part of the steps."""
        return self.url(hide=self.hide ^ {part})


_DEFAULT: Final = RolloutQuery()


def _name(text: str) -> str | None:
    return text[:_LONGEST] or None


def _names(text: str) -> tuple[str, ...]:
    names = (name[:_LONGEST] for name in text.split(",", _MOST_FOLDS)[:_MOST_FOLDS])
    return tuple(dict.fromkeys(name for name in names if name))


def _one_of(known: Iterable[_Text], given: str | None, default: _Text) -> _Text:
    return next((each for each in known if each == given), default)


def _parts(text: str) -> frozenset[PartKind]:
    return frozenset(part for part in PARTS if part in text.split(","))
