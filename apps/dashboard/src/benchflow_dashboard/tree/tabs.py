"""The tabs beside the steps: rewards, evidence, cost and raw events of one node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from benchflow_contracts import ModelCall, RolloutNode, Usage, VerifyResult
from benchflow_contracts.events import Event
from benchflow_store import StoredRollout, missing_state

from .measure import cost_of

EVENTS: Final = 20
"""The number of events on a page."""
_EVENT_TEXT: Final = 20_000
_ROWS: Final = 200


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One verdict on the node, or on a leaf below it."""

    node: str
    name: str
    result: VerifyResult
    counted: VerifyResult
    """As it counts: a tampered verdict is unscored."""


@dataclass(frozen=True, slots=True)
class RewardTab:
    """The verdicts on a node and on the leaves below it."""

    own: Sequence[VerdictRow]
    below: Sequence[VerdictRow]
    hidden: int

    @classmethod
    def of(cls, node: RolloutNode) -> "RewardTab":
        """Return the verdicts, at most 200 of leaves."""
        leaves = [leaf for leaf in node.leaves if leaf is not node]
        below = [row for leaf in leaves[:_ROWS] for row in _verdicts(leaf)]
        return cls(list(_verdicts(node)), below, max(len(leaves) - _ROWS, 0))


def _verdicts(node: RolloutNode) -> Iterable[VerdictRow]:
    return (
        VerdictRow(node.id, name, result, result.counted()) for name, result in node.results.items()
    )


@dataclass(frozen=True, slots=True)
class EvidenceTab:
    """What a node's verdict and its state rest on."""

    rows: Sequence[tuple[str, str]]
    findings: Sequence[tuple[str, str]]
    """Path and grade of each file that the integrity check reports."""

    @classmethod
    def of(cls, stored: StoredRollout, node: RolloutNode) -> "EvidenceTab":
        """Return the rows that are known. No state is read."""
        rows: list[tuple[str, str]] = [_state_row(stored, node)]
        findings: list[tuple[str, str]] = []
        for name, result in node.results.items():
            rows.append((f"grading of {name}", result.grading))
            rows.append((f"integrity of {name}", result.integrity or "not checked"))
            error = result.counted().error
            rows += [(f"no score of {name}", error)] if error else []
            image = result.meta.get("image")
            rows += [(f"grading image of {name}", str(image))] if image else []
            findings += _findings(result)
        if node.checkpoint_ref is not None:
            rows.append(("checkpoint", node.checkpoint_ref))
        rows += [
            (f"{name.replace('_', ' ')}, s", f"{sec:.3f}") for name, sec in node.took_sec.items()
        ]
        return cls(rows, findings[:_ROWS])


def _state_row(stored: StoredRollout, node: RolloutNode) -> tuple[str, str]:
    missing = missing_state(stored, node)
    if missing is not None:
        flag = f"; {missing.flag} records it" if missing.flag else ""
        return "state", f"not recorded: {missing.reason}{flag}"
    assert node.state_ref is not None, "the state is not missing"
    return "state", f"{node.state_ref.digest}, {node.state_ref.size} bytes"


def _findings(result: VerifyResult) -> list[tuple[str, str]]:
    report: object = result.meta.get("integrity")
    if not isinstance(report, Mapping):
        return []
    found = cast("Mapping[str, object]", report).get("findings")
    rows = cast("list[object]", found) if isinstance(found, list | tuple) else []
    known = (cast("Mapping[str, object]", row) for row in rows if isinstance(row, Mapping))
    return [(str(row.get("path", "")), str(row.get("grade", ""))) for row in known]


@dataclass(frozen=True, slots=True)
class CostRow:
    """The cost of one step."""

    node: str
    usage: Usage | None
    """`None` if nothing reported tokens."""
    dollars: float | None
    seconds: float
    calls: int


@dataclass(frozen=True, slots=True)
class CostTab:
    """The cost of the steps from the root to a node. The last row is the node's own."""

    rows: Sequence[CostRow]
    total: CostRow
    hidden: int
    calls: Sequence[ModelCall]
    """The recorded model calls of the node's own step."""

    @classmethod
    def of(cls, node: RolloutNode, calls: Mapping[str, ModelCall]) -> "CostTab":
        """Return the costs, at most those of the last 200 steps in rows."""
        rows = [
            CostRow(
                node=each.id,
                usage=each.step.usage,
                dollars=cost_of(each.step, calls),
                seconds=max(each.step.finished_at - each.step.started_at, 0.0),
                calls=len(each.step.model_calls),
            )
            for each in node.path
            if each.step is not None
        ]
        own = () if node.step is None else node.step.model_calls
        return cls(
            rows=rows[-_ROWS:],
            total=_total(rows),
            hidden=max(len(rows) - _ROWS, 0),
            calls=[calls[name] for name in own if name in calls],
        )


def _total(rows: Sequence[CostRow]) -> CostRow:
    usages = [row.usage for row in rows if row.usage is not None]
    dollars = [row.dollars for row in rows if row.dollars is not None]
    usage = Usage(
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )
    return CostRow(
        node="",
        usage=usage if usages else None,
        dollars=sum(dollars) if dollars else None,
        seconds=sum(row.seconds for row in rows),
        calls=sum(row.calls for row in rows),
    )


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event of the log, as JSON."""

    seq: int
    kind: str
    ts: float
    text: str
    left: int
    """The number of characters after `text`."""


@dataclass(frozen=True, slots=True)
class EventsTab:
    """The events that name a node, in the order of the log."""

    rows: Sequence[EventRow]
    total: int
    page: int
    pages: int

    @classmethod
    def of(cls, node: RolloutNode, events: Sequence[Event], page: int) -> "EventsTab":
        """Return one page of the events. A page after the last one is the last one."""
        named = [event for event in events if _names(event, node)]
        pages = max((len(named) + EVENTS - 1) // EVENTS, 1)
        page = min(page, pages - 1)
        shown = named[page * EVENTS : (page + 1) * EVENTS]
        return cls([_event_row(event) for event in shown], len(named), page, pages)


def _names(event: Event, node: RolloutNode) -> bool:
    if getattr(event, "node", None) == node.id:
        return True
    return node.parent is None and getattr(event, "root", None) == node.id


def _event_row(event: Event) -> EventRow:
    text = event.model_dump_json(indent=2)
    cut = text[:_EVENT_TEXT]
    return EventRow(event.seq, event.kind, event.ts, cut, len(text) - len(cut))
