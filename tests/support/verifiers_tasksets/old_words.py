# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""An environment of verifiers 0.3 with one turn: how many words has a sentence?"""

import verifiers as vf
from datasets import Dataset

SENTENCES = ("a bird in the hand", "two birds", "no bird at all today")


def is_right(completion, answer) -> float:
    return float(completion[-1]["content"].strip() == answer)


def is_short(completion) -> float:
    return float(len(completion[-1]["content"]) < 10)


def is_shortest(completions) -> list[float]:
    """Compare the rollouts of a group."""
    sizes = [len(completion[-1]["content"]) for completion in completions]
    return [float(size == min(sizes)) for size in sizes]


def load_environment(
    weight: float = 2.0, breaks: bool = False, compares: bool = False
) -> vf.Environment:
    def breaks_down(completion) -> float:
        raise ValueError("a defect of the reward function")

    rows = [{"question": text, "answer": str(len(text.split()))} for text in SENTENCES]
    more = [*([breaks_down] if breaks else []), *([is_shortest] if compares else [])]
    functions = [is_right, is_short, *more]
    weights = [weight, 0.5, *[1.0 for _ in more]]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows),
        system_prompt="Answer with the number of words alone.",
        rubric=vf.Rubric(funcs=functions, weights=weights),
    )
