"""An agent that books on the day that it is told, and what its rows are worth."""

from benchflow_contracts import (
    Answer,
)
from benchflow_testing.fakes import (
    Act,
    FakeAgent,
    FakeWorld,
    Pose,
    Say,
    ask_with_options,
)

WHICH = ask_with_options("which day?", "monday", "tuesday", "friday")
REWARDS = {"monday": 0.0, "tuesday": 1.0, "friday": 0.5}


def book(day: str) -> Act:
    async def run(session):
        await FakeWorld(session.sandbox).insert("events", (day,))
        result = await session.sandbox.exec(f"echo {day} >> booked.txt")
        return f"exit {result.exit_code}"

    return Act(run, title=f"book {day}")


def chosen(answer: Answer) -> str:
    return answer.selected["q1"][0]


def booking_agent(**options) -> FakeAgent:
    """Writes a row, asks, and books what it is told."""
    return FakeAgent(
        [[book("before"), Pose(WHICH, lambda answer: [book(chosen(answer)), Say("booked")])]],
        **options,
    )


def booked(node, _evidence) -> float:
    """Score by the rows that the world really has."""
    rows = node.env_state.databases["/state"]["events"].rows
    assert rows[0] == ("before",)
    assert len(rows) == 2
    return REWARDS[rows[1][0]]


def fork_of(tree):
    return next(node for node in tree.nodes if node.branch is not None)
