"""The page of proven agents says what the declarations say."""

from pathlib import Path

from benchflow_agent_acp.proven_page import proven_page, shipped

PAGE = Path(__file__).parents[2] / "docs/reference/agents-proven.md"


def test_the_page_is_made_from_the_declarations() -> None:
    remedy = "run `python -m benchflow_agent_acp.proven_page > docs/reference/agents-proven.md`"
    assert PAGE.read_text() == proven_page(shipped()), remedy
