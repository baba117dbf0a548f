"""Numbers, outcomes and lines as text."""

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchflow_contracts import BranchRecord, Credit, RolloutRecord, Value
    from benchflow_contracts.gateway import EndpointProbe, TokenLevel


def reward(value: float | None) -> str:
    """Return a reward with up to three decimals, or a dash for none."""
    if value is None or abs(value) >= 1e9:
        return "-" if value is None else f"{value:.4g}"
    return f"{value:.3f}".rstrip("0").rstrip(".")


def count(number: float) -> str:
    """Return a large number with three digits, such as `1.23M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def value(v: "Value | None") -> str:
    """Return V with its sample size and standard error."""
    if v is None:
        return "-"
    weighting = ", by the user's answers" if v.weighting == "answers" else ""
    return f"{reward(v.mean)} (n={v.n}, se={reward(v.stderr)}{weighting})"


def credit(node: "Credit") -> str:
    """Return the known advantages, with their signs."""
    parts = [("step", node.step), ("process", node.process), ("intra", node.intra)]
    shown = [f"{name} {_signed(part)}" for name, part in parts if part is not None]
    return "A " + ", ".join(shown) if shown else ""


def fork(record: "BranchRecord") -> str:
    """Return the size, place and fidelity of a fork, or why the node was not forked."""
    if not record.children:
        return record.reason
    place = "" if record.call is None else f" at model call {record.call}"
    return f"fork x{record.children}{place} ({record.fidelity})"


def took(seconds: Mapping[str, float]) -> str:
    """Return the times of a fork, each in milliseconds."""
    parts = (f"{name.replace('_', ' ')} {sec * 1000:.0f} ms" for name, sec in seconds.items())
    return ", ".join(parts)


def grading(record: "RolloutRecord") -> str:
    """Return the isolation of the grading, and the integrity unless it is clean."""
    integrity = record.integrity if record.integrity in {"suspicious", "tampered"} else None
    return " ".join(part for part in (record.grading, integrity) if part) or "-"


def _signed(number: float) -> str:
    return ("+" if number >= 0 else "-") + reward(abs(number))


def outcome(record: "RolloutRecord") -> str:
    """Return the status, or the boundary and message of a failure."""
    from benchflow_store.rollout_triage import triage

    return triage(record).text


def token_level(level: "TokenLevel") -> str:
    """Return what a model endpoint returns, and what that is good for."""
    meaning = {
        "tokens+logprobs": "its answers can be trained on",
        "tokens": "log-probabilities are missing: its answers cannot be trained on",
        "text": "token ids are missing: its answers are for evaluation and for SFT",
    }
    return f"{level}: {meaning[level]}"


def endpoint(probe: "EndpointProbe") -> str:
    """Return the tokens of a model endpoint, or why they are not known."""
    if probe.level is None:
        return f"warning: the tokens of the model endpoint are not known: {probe.error}"
    return f"model endpoint {token_level(probe.level)}"


def wrap(text: str, width: int, *, head: str = "", indent: int = 0) -> list[str]:
    """Return `head` and `text` as lines of at most `width` columns; no word is broken.

    Lines after the first begin with `indent` spaces. A longer word gets a line of its own.
    """
    lines = textwrap.wrap(
        text,
        max(width, 1),
        initial_indent=head,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [head]


def shorten(text: str, width: int) -> str:
    """Return the start of `text`, with an ellipsis where it is longer than `width`."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
