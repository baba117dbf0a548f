"""What lies around a span: its agent, and the model call or the tool that it is a part of."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .conversations import MAX_LEVELS, Item
from .facts import AgentRun, ModelCall, ToolRun


class Around(NamedTuple):
    """The innermost agent, model call and tool around an item."""

    role: str
    call: Item | None
    tool: Item | None


class Surroundings:
    """Finds what lies around the items of one conversation."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._by_id = {(item.trace, item.id): item for item in items}
        self._known: dict[tuple[str, str | None], Around] = {}

    def above(self, item: Item) -> Iterator[Item]:
        """Yield the parent of an item, its parent and so on, at most `MAX_LEVELS` of them."""
        seen = {item.id}
        parent = self._by_id.get((item.trace, item.parent or ""))
        while parent is not None and parent.id not in seen and len(seen) < MAX_LEVELS:
            seen.add(parent.id)
            yield parent
            parent = self._by_id.get((parent.trace, parent.parent or ""))

    def of(self, item: Item) -> Around:
        """Return what lies around an item. Items with one parent have the same surroundings."""
        # Nothing lies around a span that names itself as its parent.
        place = (item.trace, None if item.parent == item.id else item.parent)
        if (known := self._known.get(place)) is None:
            above = tuple(self.above(item))
            names = (name for parent in above if (name := agent_name(parent)) is not None)
            known = Around(
                role=next(names, "agent"),
                call=next((parent for parent in above if has(parent, ModelCall)), None),
                tool=next((parent for parent in above if has(parent, ToolRun)), None),
            )
            self._known[place] = known
        return known

    def role(self, item: Item) -> str:
        """Return the name of the agent of an item."""
        name = agent_name(item)
        return self.of(item).role if name is None else name


def agent_name(item: Item) -> str | None:
    """Return the name of the agent that an item describes, or None."""
    if item.reading is not None:
        for fact in item.reading.facts:
            if isinstance(fact, AgentRun):
                return fact.name[:200]
    return None


def has(item: Item, kind: type[ModelCall | ToolRun]) -> bool:
    """Return whether an item has a fact of a kind."""
    if item.reading is not None:
        for fact in item.reading.facts:
            if isinstance(fact, kind):
                return True
    return False
