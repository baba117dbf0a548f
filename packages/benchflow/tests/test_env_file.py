"""`--env-file`: KEY=VALUE lines, as docker reads them."""

from pathlib import Path

import pytest
from benchflow.cli.entry import run
from benchflow.cli.env_file import read_env_file, with_env_files
from benchflow_contracts import UsageError
from benchflow_engine.flags import run_config


def test_a_file_is_read_as_docker_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", "here")
    monkeypatch.delenv("NOT_HERE", raising=False)
    file = tmp_path / "agent.env"
    file.write_text('# a comment\n\nTOKEN=a=b "c"\nEMPTY=\nFROM_HERE\nNOT_HERE\n')
    assert read_env_file(file) == {"TOKEN": 'a=b "c"', "EMPTY": "", "FROM_HERE": "here"}


def test_an_option_overrides_a_file_and_a_later_file_an_earlier_one(tmp_path: Path) -> None:
    first, second = tmp_path / "1.env", tmp_path / "2.env"
    first.write_text("A=1\nB=1\nC=1\n")
    second.write_text("B=2\nC=2\n")
    options = with_env_files(run_config(agent_env={"C": "3"}), [first, second])
    assert options.agent.env == {"A": "1", "B": "2", "C": "3"}


def test_the_agent_does_not_get_the_key_of_the_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MY_KEY", "FORWARDED"):
        monkeypatch.setenv(name, "before")
    file = tmp_path / "agent.env"
    file.write_text("MY_KEY=sk-1234567\nFORWARDED=f-1234567\nOTHER=o\n")
    chosen = run_config(
        api_key_env="MY_KEY", forward_env=("FORWARDED",), base_url="http://127.0.0.1:1"
    )
    options = with_env_files(chosen, [file])
    assert options.agent.env == {"OTHER": "o"}
    endpoint = options.model.endpoint()
    assert endpoint is not None
    assert endpoint.headers["x-api-key"] == "sk-1234567"


@pytest.mark.parametrize("line", ["=value", "two words=value", "export A=1"])
def test_a_wrong_line_is_named_without_its_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    file = tmp_path / "agent.env"
    file.write_text(f"A=1\n{line}secret\n")
    assert run(["run", str(tmp_path), "--env-file", str(file)]) == 2
    error = capsys.readouterr().err
    assert "agent.env': line 2 is not KEY=VALUE" in error
    assert "secret" not in error


def test_a_missing_file_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "create", "-p", str(tmp_path), "--env-file", str(tmp_path / "no.env")]
    assert run(command) == 2
    assert "no.env' cannot be read: No such file" in capsys.readouterr().err


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path: Path) -> None:
    file = tmp_path / "agent.env"
    file.write_bytes(b"\xef\xbb\xbfFIRST=1\n")
    assert read_env_file(file) == {"FIRST": "1"}


def test_a_value_with_a_nul_byte_is_refused_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "agent.env"
    file.write_bytes(b"A=1\nSECRET=hid\0den\n")
    with pytest.raises(UsageError, match="line 2") as refused:
        read_env_file(file)
    assert "hid" not in str(refused.value)
