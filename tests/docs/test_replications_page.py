"""The numbers on the page about replications are those that its code prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/guides/choose-replications.md"
PAIRS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize(("code", "output"), PAIRS, ids=range(len(PAIRS)))
def test_the_page_shows_what_its_code_prints(code: str, output: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.stdout, done.stderr) == (output, "")


def test_each_block_of_code_has_its_output() -> None:
    assert len(PAIRS) == PAGE.read_text().count("```python") == 3
