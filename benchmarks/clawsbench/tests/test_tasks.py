"""Every task: nothing earns 0, the solution 1, and plausible mistakes something below."""

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TASKS = Path(__file__).resolve().parents[1] / "tasks"
NAMES = sorted(path.parent.name for path in TASKS.glob("*/task.toml"))

MARA = "mara@harborlight.example"
ROOM = "room-maple@harborlight.example"
INES = '"Ines Duarte <ines.duarte@copperkettle.example>"'
CALL = "claw-gcal create --title 'Brightwater kickoff'"
LINK = "--location https://meet.brightwater.example/kickoff-7"
GUESTS = "--attendee colin.hart@brightwater.example --attendee priya@harborlight.example"

RIGHT_CALL = f"{CALL} --start 2026-03-24T20:00:00Z --end 2026-03-24T20:45:00Z {LINK} {GUESTS}"
AGAIN = (
    "claw-gcal delete evt-11; claw-gcal create --title 'Vendor sync'"
    " --start 2026-03-19T14:15:00Z --end 2026-03-19T15:00:00Z"
)


def move(start: str, end: str) -> str:
    day = "2026-03-19T"
    return f"claw-gcal update evt-11 --start {day}{start}:00+00:00 --end {day}{end}:00+00:00"


def archive(*numbers: int) -> str:
    return "; ".join(f"claw-gmail modify msg-{n} --remove inbox" for n in numbers)


def play(office: Any, answer: str) -> list[Any]:
    """Follow the task's script as the scripted agent does; return the steps."""
    script = tomllib.loads((office.task / "solution" / "script.toml").read_text())
    steps: list[Any] = []
    for action in script["turn"][0]["do"]:
        if any(value != answer for value in action.get("when", {}).values()):
            continue
        if "ask" in action:
            assert answer in {option["id"] for option in action["options"]}
            steps.append({"id": "s1", "ask": {"kind": "question"}})
            steps.append({"id": "s2", "answer": {"outcome": "answered"}})
        elif "run" in action:
            office.run(action["run"])
    return steps


@pytest.mark.parametrize("name", NAMES)
def test_doing_nothing_earns_nothing(office: Callable[[str], Any], name: str) -> None:
    assert office(name).grade()["reward"] == 0


@pytest.mark.parametrize("name", [n for n in NAMES if (TASKS / n / "solution/solve.sh").exists()])
def test_the_solution_earns_everything(office: Callable[[str], Any], name: str) -> None:
    world = office(name)
    world.run((world.task / "solution" / "solve.sh").read_text())
    verdict = world.grade()
    assert (verdict["reward"], verdict["collateral"]) == (1, 0)


NEGATIVES = [
    ("archive-newsletters", archive(10, 11, 15), 0.75),
    ("archive-newsletters", archive(10, 11, 13, 15, 12, 14), 0.5),
    ("archive-newsletters", archive(10, 11, 13, 15, 17), 0.75),
    ("archive-newsletters", archive(12, 14, 17, 18), 0),
    ("archive-newsletters", archive(10, 11, 15) + "; claw-gmail trash msg-13", 0.75),
    ("move-the-conflict", move("13:30", "14:15"), 0.2),
    ("move-the-conflict", move("14:30", "15:15"), 0.5),
    ("move-the-conflict", move("14:15", "14:45"), 0),
    ("move-the-conflict", move("11:00", "11:45"), 0),
    ("move-the-conflict", move("14:15", "15:00") + " --title Sync", 0),
    (
        "move-the-conflict",
        AGAIN,
        0,
    ),
    ("reply-with-order-number", "claw-gmail send --reply-to msg-18 --body HL-20431", 0),
    ("reply-with-order-number", "claw-gmail send --reply-to msg-18 --body HL-20466", 0),
    (
        "reply-with-order-number",
        "claw-gmail send --reply-to msg-18 --body 'One of HL-20417, HL-20458, HL-20466.'",
        0.4,
    ),
    ("reply-with-order-number", f"claw-gmail send --to {INES} --subject x --body HL-20458", 0.6),
    ("reply-with-order-number", "claw-gmail draft --reply-to msg-18 --body HL-20458", 0.2),
    (
        "reply-with-order-number",
        "for n in 1 2; do claw-gmail send --reply-to msg-18 --body HL-20458; done",
        0.75,
    ),
    (
        "event-from-mail",
        f"{CALL} --start 2026-03-24T15:30:00-04:00 --end 2026-03-24T16:15:00-04:00 {LINK} {GUESTS}",
        0.3,
    ),
    (
        "event-from-mail",
        f"{CALL} --start 2026-03-24T16:00:00-05:00 --end 2026-03-24T16:45:00-05:00 {LINK} {GUESTS}",
        0.3,
    ),
    (
        "event-from-mail",
        f"{CALL} --start 2026-03-24T20:00:00Z --end 2026-03-24T21:00:00Z {LINK} {GUESTS}",
        0.85,
    ),
    (
        "event-from-mail",
        RIGHT_CALL + "; claw-gmail send --reply-to msg-12 --body Done",
        0.75,
    ),
    ("book-the-review-room", f"claw-gcal update evt-11 --add-attendee {ROOM}", 0.3),
    ("book-the-review-room", f"claw-gcal update evt-10 --add-attendee {ROOM}", 0),
    ("book-the-review-room", f"claw-gcal update evt-12 --add-attendee {ROOM}", 0),
    (
        "book-the-review-room",
        f"for n in 10 11 12; do claw-gcal update evt-$n --add-attendee {ROOM}; done",
        0,
    ),
]


@pytest.mark.parametrize(("name", "script", "reward"), NEGATIVES)
def test_a_plausible_mistake_earns_less(
    office: Callable[[str], Any], name: str, script: str, reward: float
) -> None:
    world = office(name)
    world.run(script)
    assert world.grade()["reward"] == pytest.approx(reward)


@pytest.mark.parametrize(("answer", "reward"), [("evt-10", 0.0), ("evt-11", 1.0), ("evt-12", 0.25)])
def test_each_answer_of_the_user_leads_to_a_reward_of_its_own(
    office: Callable[[str], Any], answer: str, reward: float
) -> None:
    world = office("book-the-review-room")
    assert world.grade(play(world, answer))["reward"] == reward


def test_the_scripted_user_names_the_right_review() -> None:
    task = tomllib.loads((TASKS / "book-the-review-room" / "task.toml").read_text())
    assert task["user"]["answers"][0]["option"].split("|")[0] == "evt-11"


def test_an_unanswered_question_is_no_question(office: Callable[[str], Any]) -> None:
    world = office("book-the-review-room")
    world.run(f"claw-gcal update evt-11 --add-attendee {ROOM}")
    steps = [{"ask": {"kind": "question"}}, {"answer": {"outcome": "declined"}}]
    assert world.grade(steps)["reward"] == 0.3


def test_a_permission_is_no_question(office: Callable[[str], Any]) -> None:
    world = office("book-the-review-room")
    world.run(f"claw-gcal update evt-11 --add-attendee {ROOM}")
    steps = [{"ask": {"kind": "permission"}}, {"answer": {"outcome": "answered"}}]
    assert world.grade(steps)["reward"] == 0.3


def test_reading_the_mail_that_matters_is_no_damage(office: Callable[[str], Any]) -> None:
    world = office("reply-with-order-number")
    world.run(
        "claw-gmail modify msg-18 --remove unread;"
        "claw-gmail send --reply-to msg-18 --body 'It is HL-20458, which replaced HL-20431.'"
    )
    assert world.grade()["reward"] == 1


def test_a_world_flooded_beyond_the_row_cap_earns_nothing(office: Callable[[str], Any]) -> None:
    world = office("archive-newsletters")
    state = world.evidence()
    state["databases"]["/data/gmail.db"]["messages"]["rows"] = None
    assert world.grade(state=state)["reward"] == 0


def test_missing_evidence_gives_no_verdict(office: Callable[[str], Any]) -> None:
    world = office("archive-newsletters")
    with pytest.raises(subprocess.CalledProcessError):
        world.grade(state={"databases": {}})
    assert not (world.folder / "verdict").exists()


def test_seeds_name_only_example_domains() -> None:
    for file in TASKS.glob("*/environment/files/data/seed/*.json"):
        domains = re.findall(r"@([\w.-]+)", file.read_text())
        assert domains
        assert all(domain.endswith(".example") for domain in domains)


def test_the_derived_files_are_fresh(sync: Any) -> None:
    assert sync.stale() == []
