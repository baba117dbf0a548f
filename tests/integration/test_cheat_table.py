"""The command that makes the table of `docs/reference/cheating.md`, on one task of one design."""

import asyncio

import pytest
from cheated.corpus import AIMED, HONEST
from cheated.table import BEGIN, END, Cell, kind, put_into, table, try_cell


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_code_that_tests_run_as_nobody_earns_nothing_unflagged(image, tmp_path):
    cell = asyncio.run(try_cell("harbor", "twin", "local", image, ["code"]))
    [tried] = cell.tasks
    assert (tried.oracle, tried.nop) == (1, 0)
    assert [(each.reward, each.integrity) for each in tried.honest] == [(1, "clean")] * len(HONEST)
    found = {each.cheat: kind(each) for each in tried.cheats}
    assert found.keys() == AIMED["code"]
    assert "unflagged" not in found.values()
    assert (found["reward-as-nobody"], found["reward-second"]) == ("0", "0")
    # They are real: they get the reward, and are seen.
    assert (found["nobody-is-root"], found["places-opened"]) == ("tampered", "tampered")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put_into(page, table([Cell.model_validate(cell.model_dump())]))
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n| tests |")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "old" not in text
    assert f"| Harbor's | twin | local | {len(AIMED['code'])} |" in text
