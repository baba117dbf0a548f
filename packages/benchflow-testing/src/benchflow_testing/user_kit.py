"""The conformance kit of a User Model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchflow_contracts.ask import Answer, Ask, AskOption, Question
from benchflow_contracts.user import UserModel

from .check import Check, CheckResult, expect, expect_equal, promise, run_checks

_MOST_NUDGES = 1000


@dataclass(frozen=True, slots=True)
class UserSubject:
    """A way to get a fresh user under test."""

    make: Callable[[], UserModel]


UserCheck = Check[UserSubject]

_OPTIONS = (AskOption(id="opt-a", label="A"), AskOption(id="opt-b", label="B"))


def _ask(*questions: Question, permission: bool = False) -> Ask:
    return Ask(
        id="ask-kit",
        channel="permission" if permission else "elicitation",
        kind="permission" if permission else "question",
        questions=questions,
    )


_ASKS = (
    _ask(Question(id="one", text="Which of the two?", options=_OPTIONS)),
    _ask(Question(id="many", text="Which of them?", options=_OPTIONS, multi=True)),
    _ask(Question(id="free", text="What name?", allow_custom=True)),
    _ask(Question(id="closed", text="Nothing to choose from?")),
    _ask(
        Question(id="first", text="Which?", options=_OPTIONS),
        Question(id="second", text="And how?", options=_OPTIONS, allow_custom=True),
    ),
    _ask(Question(id="gate", text="May it run?", options=_OPTIONS), permission=True),
)


def _check_answer(ask: Ask, answer: Answer) -> None:
    if answer.outcome != "answered":
        expect(not answer.selected and not answer.text, f"{answer.outcome} with an answer")
        return
    questions = {question.id: question for question in ask.questions}
    for ident, chosen in answer.selected.items():
        expect(ident in questions, f"no question {ident!r} was asked")
        offered = {option.id for option in questions[ident].options}
        expect(offered.issuperset(chosen), f"{chosen!r} were not all offered for {ident!r}")
        single = not questions[ident].multi
        expect(not single or len(chosen) <= 1, f"{len(chosen)} options chosen for {ident!r}")
    for ident in answer.text:
        expect(ident in questions, f"no question {ident!r} was asked")
        expect(questions[ident].allow_custom, f"{ident!r} takes no free text")


@promise()
async def an_answer_fits_its_ask(subject: UserSubject) -> None:
    """Only offered options and allowed text are given; declining is an answer."""
    for ask in _ASKS:
        user = subject.make()
        try:
            _check_answer(ask, await user.answer(ask, ()))
        finally:
            await user.aclose()


@promise()
async def nudges_come_to_an_end(subject: UserSubject) -> None:
    """`nudge` returns `None` at last, and no empty prompt before it."""
    user = subject.make()
    try:
        for _ in range(_MOST_NUDGES):
            text = await user.nudge(())
            if text is None:
                return
            expect(text.strip(), "an empty nudge")
    finally:
        await user.aclose()
    expect_equal(_MOST_NUDGES, 0, "the number of nudges so far")


@promise()
async def closing_may_be_repeated(subject: UserSubject) -> None:
    """A second `aclose` does nothing."""
    user = subject.make()
    await user.aclose()
    await user.aclose()


_CHECKS: tuple[UserCheck, ...] = (
    an_answer_fits_its_ask,
    nudges_come_to_an_end,
    closing_may_be_repeated,
)


def user_model_checks() -> list[UserCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_user_model(
    make: Callable[[], UserModel],
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against the users that `make` returns.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    return await run_checks(_CHECKS, UserSubject(make), only=only, on_result=on_result)
