# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""An environment of verifiers 0.3 with several turns: guess a number."""

import verifiers as vf
from datasets import Dataset


class GuessEnv(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        guess, secret = int(messages[-1].content), int(state["answer"])
        if guess == secret:
            final = [{"role": "user", "content": "Right."}]
            state["final_env_response"] = final
            return final
        return [{"role": "user", "content": "Too low." if guess < secret else "Too high."}]


def is_found(state) -> float:
    return float(state.get("final_env_response") is not None)


def is_quick(state) -> float:
    return 1.0 / len(state["trajectory"])


def load_environment() -> vf.Environment:
    rows = [{"question": "Guess my number from 0 to 99.", "answer": "21"}]
    return GuessEnv(
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[is_found, is_quick], weights=[1.0, 0.5]),
        max_turns=4,
    )
