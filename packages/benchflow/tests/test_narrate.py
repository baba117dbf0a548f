"""What a rollout looks like as lines of text."""

from benchflow.cli.narrate import one_line, step_lines
from benchflow_contracts import Ask, AskOption, Question, Step

QUESTION = Question(id="q", text="Which drink?\nDrink", options=(AskOption(id="t", label="Tea"),))
STEP = Step(
    id="s",
    started_at=1.0,
    finished_at=2.0,
    ask=Ask(id="a", channel="elicitation", kind="question", questions=(QUESTION,)),
)


def test_a_question_of_two_lines_is_shown_in_one_with_its_options():
    assert one_line(STEP) == "asks: Which drink? Drink"
    assert list(step_lines(STEP)) == [("asks", "Which drink? Drink  [Tea]")]
