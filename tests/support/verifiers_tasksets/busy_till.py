# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""The till of `old_till` without a limit of turns, for measurements."""

import verifiers as vf
from datasets import Dataset
from old_till import TillEnv, is_filled


def load_environment() -> vf.Environment:
    rows = [{"question": "Put 100 into the till.", "info": {"wanted": 100}}]
    return TillEnv(
        dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[is_filled]), max_turns=-1
    )
