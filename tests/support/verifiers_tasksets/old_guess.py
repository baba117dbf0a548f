# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""An environment of verifiers 0.3 with several turns: guess a number."""

from contextlib import suppress

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


def is_found_by_any_way(state) -> float:
    """Ask for the same key by each method that returns a value for a missing key."""
    key = "final_env_response"
    for ask in (state.get, state.copy().get, state.setdefault):
        with suppress(LookupError):
            return float(ask(key) is not None)
    return float(state.pop(key, None) is not None)


def is_quick(state) -> float:
    return 1.0 / len(state["trajectory"])


def is_told(completion) -> float:
    """Read the last answer of the environment, and not the state."""
    return float(completion[-1].content == "Right.")


def is_quickest(states) -> list[float]:
    """Compare the rollouts of a group."""
    turns = [len(state["trajectory"]) for state in states]
    return [float(count == min(turns)) for count in turns]


def load_environment(compares: bool = False, lives: bool = True) -> vf.Environment:
    rows = [{"question": "Guess my number from 0 to 99.", "answer": "21"}]
    found = is_found_by_any_way if compares else is_found
    functions = [found if lives else is_told, is_quick, *([is_quickest] if compares else [])]
    return GuessEnv(
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=functions, weights=[1.0, 0.5, 0.25][: len(functions)]),
        max_turns=4,
    )
