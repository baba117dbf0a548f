"""The `[proven]` tables: what the probe writes, and what is believed of them."""

import pytest
from benchflow_agent_acp import (
    AcpAgent,
    ProbeReport,
    parse_declaration,
    read_declaration,
    write_proven,
)
from benchflow_agent_acp.builtin import scripted
from benchflow_contracts import UsageError

REPORT = ProbeReport(
    agent="scripted",
    version="1.0.0",
    date="2026-11-22",
    results={"write": "ok", "state": "ok", "live": "a leak: the first live child knows"},
    timings_sec={},
)


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_bytes(scripted().declaration_path.read_bytes())
    write_proven(path, REPORT.model_copy(update={"results": {"live": "no", "state": "no"}}))
    return path


def proven(path):
    return dict(AcpAgent(read_declaration(path)).capabilities().proven)


def test_a_proof_is_written_and_nothing_else_changes(own):
    kept = set(proven(own))
    before = own.read_text()
    write_proven(own, REPORT)
    assert proven(own)["state"] == "1.0.0 2026-11-22"
    assert set(proven(own)) == kept | {"state"}
    assert own.read_text().startswith(before.rstrip().partition("\n[proven")[0])
    write_proven(own, REPORT)
    assert own.read_text().count("[proven.state]") == 1


def test_a_failure_removes_a_proof_and_other_proofs_stay(own):
    write_proven(own, REPORT.model_copy(update={"results": {"state": "ok", "replay-ask": "ok"}}))
    write_proven(own, REPORT.model_copy(update={"results": {"state": "a leak"}}))
    assert "state" not in proven(own)
    assert proven(own)["replay-ask"] == "1.0.0 2026-11-22"


def test_a_proof_of_another_version_does_not_count(own):
    write_proven(own, REPORT)
    own.write_text(own.read_text().replace('version = "1.0.0"', 'version = "1.1.0"', 1))
    assert "state" not in proven(own)
    with pytest.raises(UsageError, match=r"the file does not declare 'scripted' 1\.0\.0"):
        write_proven(own, REPORT)


def test_a_file_with_inline_tables_is_not_changed(own):
    text = own.read_text().partition("\n[proven")[0]
    own.write_text('proven = { state = { version = "1.0.0", date = "2026-11-20" } }\n' + text)
    before = own.read_text()
    with pytest.raises(UsageError, match="not valid TOML"):
        write_proven(own, REPORT)
    assert own.read_text() == before


def test_the_command_of_a_cell_is_recorded(own):
    command = 'bench run "$TASK" --agent scripted'
    seen = {"results": {"live": "ok", "replay": "no: 'x'\nand more"}}
    write_proven(own, REPORT.model_copy(update={**seen, "commands": {"live": command}}))
    decl = read_declaration(own)
    assert decl.proven["live"].command == command
    assert decl.unproven["replay"].reason == "no: 'x' and more"
    write_proven(own, REPORT.model_copy(update={"results": {"replay": "ok"}}))
    assert "replay" not in read_declaration(own).unproven


def test_an_unknown_fidelity_is_refused(own):
    text = own.read_text() + '\n[proven.perhaps]\nversion = "1.0.0"\ndate = "2026-11-22"\n'
    with pytest.raises(UsageError, match="proven"):
        parse_declaration(text.encode(), where="own.toml")


def test_an_agent_without_a_file_has_no_declaration_path():
    agent = AcpAgent(scripted().decl)
    with pytest.raises(UsageError, match="'scripted' has no declaration file"):
        _ = agent.declaration_path
