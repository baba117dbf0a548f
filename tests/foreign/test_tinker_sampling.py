"""The engine `tinker` with the types of the real package; its service is replaced."""

from pathlib import Path

import pytest
from foreign_program import run_beside_workspace
from judge_package import install_once

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).parent / "tinker_programs/sample.py"


def test_tinkers_own_types_take_our_request_and_give_tokens(tmp_path: Path) -> None:
    seen = run_beside_workspace(install_once("tinker==0.38.0"), PROGRAM, cwd=tmp_path)
    assert seen["asked"] == [
        {
            "model_path": "tinker://run/sampler_weights/7",
            "prompt": [1, 2, 3],
            "params": {"max_tokens": 4, "seed": 5, "stop": [9], "temperature": 0.5},
        },
        {"base_model": "Qwen/Qwen3-8B", "prompt": [1], "params": {"stop": [9]}},
    ]
    assert seen["answers"] == [
        [[5, 6], [-0.5, -0.25], "stop", "tinker://run/sampler_weights/7"],
        [[5], None, "length", None],
    ]
    assert seen["refused"] == [400, 502]
    assert seen["clients"] == 2
