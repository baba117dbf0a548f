"""The page of proven agents says what the declarations say."""

from pathlib import Path

from benchflow_agent_acp import AgentDecl, shipped_declaration
from benchflow_agent_acp.declaration import Failure, Proof
from proven import proven_page, shipped_declarations

PAGE = Path(__file__).parents[2] / "docs/reference/agents-proven.md"
TESTED = PAGE.parents[1] / "tested.md"


def test_the_page_is_made_from_the_declarations() -> None:
    remedy = (
        "run `PYTHONPATH=tests/support ./run python -m proven.page"
        " > docs/reference/agents-proven.md`"
    )
    assert PAGE.read_text() == proven_page(shipped_declarations()), remedy


def test_the_page_has_the_agents_of_every_package() -> None:
    names = {decl.id for decl in shipped_declarations()}
    assert {"policy", "scripted", "mistral-vibe"} <= names


def test_the_record_of_tests_names_the_same_agents_and_versions() -> None:
    text = TESTED.read_text()
    for decl in shipped_declarations():
        if decl.probe.untested:
            assert f"`{decl.id}`" in text.partition("\nNot tested:")[2]
        elif "test_command_agents.py" in (decl.probe.command or ""):
            assert f"`{decl.id}` {decl.version}" in text


def test_a_row_has_the_day_of_each_proof_and_the_reason_of_each_failure() -> None:
    run = {"version": "1.0.0", "date": "2026-11-22"}
    proofs = {
        "proven": {"state": Proof(**run, command='bench run "$TASK" --agent scripted')},
        "unproven": {"live": Failure(**run, reason="a leak: the first live child knows")},
    }
    decl: AgentDecl = shipped_declaration("scripted").model_copy(update=proofs)
    page = proven_page([decl])
    assert "| `scripted` | 1.0.0 | files | question | 2026-11-22 | - |" in page
    assert "- `scripted`, `live`, on 2026-11-22: a leak: the first live child knows" in page
    assert "| `scripted` | 1.0.0 | ACP | 2026-11-21 | `bench agent probe scripted` |" in page
    assert "### `scripted`, `state`" in page
    assert '```bash\nbench run "$TASK" --agent scripted\n```' in page
