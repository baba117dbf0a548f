"""How probable each answer of the task's user is."""

import math
from collections.abc import Mapping, Sequence

from benchflow_contracts import Ask, EnvironmentError_, HasAnswerProbabilities, Step, UserModel


async def answer_probabilities(
    user: UserModel, ask: Ask, steps: Sequence[Step]
) -> Mapping[str, float] | None:
    """Return the probability of each option of the only question of `ask`, by its id.

    A user without `HasAnswerProbabilities` answers once, and its option has the probability 1.
    If it says something else, every option has 0. `None` if the user cannot say.

    Raises:
        EnvironmentError_: The user gave numbers that are not probabilities.
    """
    [question] = ask.questions
    if isinstance(user, HasAnswerProbabilities):
        given = await user.answer_probabilities(ask, steps)
        return None if given is None else _checked(given, {item.id for item in question.options})
    answer = await user.answer(ask, steps)
    chosen = answer.selected.get(question.id, ())
    # Several options at once are another answer than each of them.
    return {option.id: float(chosen == (option.id,)) for option in question.options}


def _checked(given: Mapping[str, float], options: set[str]) -> Mapping[str, float]:
    unknown = given.keys() - options
    numbers = list(given.values())
    if unknown or not all(math.isfinite(p) and 0 <= p <= 1 for p in numbers):
        raise EnvironmentError_(
            f"the user model gave these probabilities of answers: {dict(given)!r}",
            hint=f"give a number from 0 to 1 for each of the options {sorted(options)}",
        )
    if math.fsum(numbers) > 1 + 1e-6:
        raise EnvironmentError_(
            f"the user model gave probabilities that add up to {math.fsum(numbers)}",
            hint="give probabilities that add up to 1 at most",
        )
    return given
