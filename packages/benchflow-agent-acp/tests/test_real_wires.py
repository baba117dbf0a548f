"""What real agents sent: the turns of a probe, recorded with a scripted model.

Only what is outside of the turn was taken out of the logs.
"""

from pathlib import Path

import pytest
from benchflow_agent_acp.logs import read_wire_log
from benchflow_agent_acp.steps import steps_from_wire

WIRES = Path(__file__).parent / "wires"


def steps_of(agent):
    return steps_from_wire(read_wire_log(WIRES / f"{agent}.jsonl"))


@pytest.mark.parametrize(
    ("agent", "channel", "question", "options"),
    [
        ("claude-agent-acp", "elicitation", "Tea or coffee?\nDrink", ["Tea", "Coffee"]),
        (
            "codex-acp",
            "elicitation",
            "Codex needs your input to continue.\nTea or coffee?\nDrink",
            ["Tea", "Coffee"],
        ),
        ("qwen", "vendor", "Tea or coffee?", ["Tea", "Coffee"]),
    ],
)
def test_a_real_question_is_a_node_with_its_answer_on_the_next_edge(
    agent, channel, question, options
):
    steps = steps_of(agent)
    asking = next(step for step in steps if step.ask)
    assert asking.ask.channel == channel
    assert asking.ask.kind == "question"
    assert asking.ask.branchable
    assert asking.ask.questions[0].text == question
    assert [option.id for option in asking.ask.questions[0].options] == options
    assert asking.ask.questions[0].allow_custom
    answered = steps[steps.index(asking) + 1]
    assert answered.answer.selected == {asking.ask.questions[0].id: ("Tea",)}
    assert "Tea" in steps[-1].message
    assert steps[-1].stop_reason == "end_turn"
    assert not any("ignored_updates" in step.meta for step in steps)


def test_a_real_tool_call_has_its_input_and_its_result():
    first, last = steps_of("opencode")
    assert first.message == "I will write the file."
    (call,) = first.tool_calls
    assert call.kind == "edit"
    assert call.raw_input["content"] == "benchflow\n"
    (seen,) = first.observations
    assert (seen.tool_call_id, seen.status) == (call.id, "completed")
    assert seen.content == "Wrote file successfully."
    assert last.stop_reason == "end_turn"
