"""A bounded cache of what is derived from a rollout: its facts and its drawings."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from benchflow_contracts import ModelCall, StoreError
from benchflow_store import RolloutProgress, StoredRollout

from benchflow_dashboard.rollouts import LoadedRollout

from .chunks import digest_of
from .display import DisplayTree, Folding
from .facts import TreeFacts
from .measure import Measure, Mode, measure
from .overview import overview
from .svg import TEXT_NODES, Drawing, Links, Marks, SvgText, draw
from .unseen_text import UnseenText

_ENTRIES: Final = 64
_BYTES: Final = 64 << 20
"""The bound on the sum of the cached drawings."""
_SENT: Final = 256
"""The drawings that pages have, of which the digests of the chunks are known."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class DrawingChoices:
    """What a drawing depends on, beside the tree."""

    mode: Mode = "value"
    fold: bool | None = None
    opened: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    a: str | None = None
    others: str = ""
    """The other parameters of the links."""


@dataclass(frozen=True, slots=True)
class DrawnTree:
    """A drawing with its overview, and what it shows."""

    drawing: Drawing
    overview: SvgText | None
    measure: Measure
    ids: frozenset[str]
    """The drawn nodes that are not folded."""
    folds_chains: bool
    unseen: UnseenText
    digests: frozenset[str]
    """The digests of the chunks, and that of `unseen`."""
    name: str
    """Equal for drawings with the same digests, wherever their chunks are."""


class TreeCache:
    """The facts and drawings that were used last. Safe to use from several threads."""

    def __init__(self, *, entries: int = _ENTRIES, size: int = _BYTES) -> None:
        """Create an empty cache with room for `entries`, and for drawings of `size` characters."""
        self._entries, self._size = entries, size
        self._cached: OrderedDict[tuple[Hashable, ...], tuple[object, int]] = OrderedDict()
        self._sent: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._lock = threading.Lock()

    def facts(self, loaded: LoadedRollout) -> TreeFacts:
        """Return the facts of a rollout, computed once for each state of its log."""
        key = (loaded.stored.directory, loaded.signature)
        return self._get(key, lambda: (TreeFacts.of(loaded.stored.tree), 0))

    def drawing(
        self, loaded: LoadedRollout, choices: DrawingChoices, selected: str | None
    ) -> DrawnTree:
        """Return a drawing in which `selected` is visible.

        A drawing does not depend on the selected node, unless the node would be folded.
        """
        found = self._drawing(loaded, choices, frozenset())
        if selected is None or selected in found.ids:
            return found
        return self._drawing(loaded, choices, frozenset({selected}))

    def known_parts(self, drawn: DrawnTree, shown: str | None) -> frozenset[str]:
        """Return the digests of the parts that a page has, and note that the page gets `drawn`.

        `shown` is the name of the drawing in the page. The result is empty if the name is unknown.
        """
        with self._lock:
            known = self._sent.get(shown or "")
            self._sent[drawn.name] = drawn.digests
            self._sent.move_to_end(drawn.name)
            while len(self._sent) > _SENT:
                self._sent.popitem(last=False)
        return known or frozenset()

    def progress(self, loaded: LoadedRollout) -> RolloutProgress:
        """Return what each branch of a running rollout does."""
        key = (loaded.stored.directory, loaded.signature, "progress")
        return self._get(key, lambda: (RolloutProgress.of(loaded.stored.log.events), 0))

    def _drawing(
        self, loaded: LoadedRollout, choices: DrawingChoices, visible: frozenset[str]
    ) -> DrawnTree:
        def compute() -> tuple[DrawnTree, int]:
            drawn = _draw(loaded, choices, self.facts(loaded), visible)
            return drawn, sum(len(chunk.content) for chunk in drawn.drawing.chunks)

        key = (loaded.stored.directory, loaded.signature, choices, visible)
        return self._get(key, compute)

    def _get(
        self, key: tuple[Hashable, ...], compute: Callable[[], tuple[_Result, int]]
    ) -> _Result:
        with self._lock:
            if key in self._cached:
                self._cached.move_to_end(key)
                return cast("_Result", self._cached[key][0])
        result, size = compute()
        with self._lock:
            # Nobody asks for an earlier state of a log again.
            for each in [each for each in self._cached if each[0] == key[0] and each[1] != key[1]]:
                del self._cached[each]
            self._cached[key] = (result, size)
            total = sum(size for _, size in self._cached.values())
            while len(self._cached) > 1 and (
                len(self._cached) > self._entries or total > self._size
            ):
                _, (_, dropped) = self._cached.popitem(last=False)
                total -= dropped
        return result


def _draw(
    loaded: LoadedRollout, choices: DrawingChoices, facts: TreeFacts, visible: frozenset[str]
) -> DrawnTree:
    tree = loaded.stored.tree
    folds = len(tree.index) >= TEXT_NODES if choices.fold is None else choices.fold
    folding = Folding(
        chains=folds,
        opened=frozenset(choices.opened),
        closed=frozenset(choices.closed),
        visible=visible if choices.a is None else visible | {choices.a},
    )
    display = DisplayTree.of(tree, folding)
    calls = recorded_calls(loaded.stored) if choices.mode == "cost" else None
    numbers = measure(tree, choices.mode, facts.values, calls)
    marks = Marks(a=choices.a, best=facts.best, running=facts.running)
    drawing = draw(display, numbers, marks, Links(choices.others, choices.opened))
    shown = zip(display.nodes, display.folds, strict=True)
    unseen = UnseenText.of(tree, display, f"{choices.others} {choices.opened}")
    digests = frozenset([unseen.digest, *(chunk.digest for chunk in drawing.chunks)])
    return DrawnTree(
        drawing=drawing,
        overview=overview(display, drawing, numbers),
        measure=numbers,
        ids=frozenset(node.id for node, fold in shown if fold != "chain"),
        folds_chains=folds,
        unseen=unseen,
        digests=digests,
        name=digest_of(" ".join(sorted(digests))),
    )


def recorded_calls(stored: StoredRollout) -> Mapping[str, ModelCall]:
    """Return the recorded model calls by id; none if their record is damaged."""
    try:
        return stored.calls
    except StoreError:
        # The cost is unknown, and the rest of the page is shown.
        return {}
