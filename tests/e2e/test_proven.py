"""Real agents carry what `docs/reference/agents-proven.md` says, by the commands that it names."""

import pytest
from proven import Cell, cells, remember_and_ask, shipped_declarations
from scripted_llm import ScriptedLlm

pytestmark = pytest.mark.timeout(700)

# A real agent runs in CI, too: it comes from PyPI, as everything there does.
IN_CI = {("scripted", "live-ask"), ("mistral-vibe", "live-ask"), ("mistral-vibe", "replay")}


def marks(cell: Cell) -> list[pytest.MarkDecorator]:
    name = (cell.decl.id, cell.fidelity)
    return [pytest.mark.agents, pytest.mark.slow] if name in IN_CI else [pytest.mark.agents]


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=f"{cell.decl.id}-{cell.fidelity}", marks=marks(cell))
        for cell in cells(shipped_declarations())
        if cell.fidelity in cell.decl.proven
    ],
)
def test_a_cell_of_the_page_is_so(cell: Cell) -> None:
    assert cell.decl.proven[cell.fidelity].command == cell.command()
    with ScriptedLlm(remember_and_ask) as llm:
        cell.show(int(llm.url.rpartition(":")[2]))
