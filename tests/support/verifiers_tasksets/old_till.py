# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""An environment of verifiers 0.3 with tools whose hidden argument is a till."""

import verifiers as vf
from datasets import Dataset


def pay_in(amount: int, till: dict) -> str:
    """Put money into the till.

    Args:
        amount: The money.
    """
    if amount < 1:
        raise ValueError("amount must be at least 1")
    till["money"] += amount
    return f"The till has {till['money']}."


class TillEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(tools=[], **kwargs)
        self.add_tool(pay_in, args_to_skip=["till"])

    async def setup_state(self, state):
        state["till"] = {"money": 0}
        return await super().setup_state(state)

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "till": state["till"]}


def is_filled(state, info) -> float:
    return min(state["till"]["money"] / info["wanted"], 1.0)


def load_environment() -> vf.Environment:
    rows = [
        {"question": f"Put {wanted} into the till.", "info": {"wanted": wanted}}
        for wanted in (4, 10)
    ]
    return TillEnv(
        dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[is_filled]), max_turns=5
    )
