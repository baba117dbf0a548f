"""Addresses of foreign environments, as tasks name them."""

from pathlib import Path

import pytest
from benchflow_contracts import TaskError, UsageError
from benchflow_env_outside import HOSTS, secret_for, world_url


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:80/env/", "https://env.example", "http://[::1]:8"]
)
def test_a_plain_url_is_taken(url: str) -> None:
    assert world_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        None,
        7,
        "",
        "env.example",
        "file:///etc/passwd",
        "ftp://env.example",
        "http://",
        "http://user:secret@env.example",
        "http://env.example/?key=secret",
        "http://env.example/#x",
        "http://env.example:99999",
        "http://env.example:0",
        "http://169.254.169.254/latest",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://0.0.0.0:80",
        "http://224.0.0.1",
        "http://env.example/\x00",
        "http://[bad",
    ],
)
def test_other_addresses_are_refused(url: object) -> None:
    with pytest.raises(TaskError) as caught:
        world_url(url)
    assert "secret" not in str(caught.value)


def test_the_operator_can_limit_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOSTS, "env.example, 127.0.0.1")
    assert world_url("http://ENV.example:1") == "http://ENV.example:1"
    with pytest.raises(TaskError, match=HOSTS):
        world_url("http://other.example")
    monkeypatch.setenv(HOSTS, "")
    with pytest.raises(TaskError, match=HOSTS):
        world_url("http://env.example")


def test_a_secret_goes_only_to_this_machine_and_to_hosts_of_the_operator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert secret_for("http://env.example", "MY_KEY") is None
    monkeypatch.setenv("MY_KEY_FILE", str(tmp_path / "key"))
    (tmp_path / "key").write_text("# of the team\n\nhunter2\nsecond\n")
    assert secret_for("http://127.0.0.1:8000", "MY_KEY") == "hunter2"
    with pytest.raises(UsageError, match=r"env\.example") as caught:
        secret_for("http://env.example", "MY_KEY")
    assert "hunter2" not in f"{caught.value}{caught.value.hint}"
    monkeypatch.setenv(HOSTS, "env.example")
    monkeypatch.setenv("MY_KEY", "of the variable")
    with pytest.raises(UsageError, match="cannot carry") as caught:
        secret_for("http://env.example", "MY_KEY")
    assert "of the variable" not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "of-the-variable")
    assert secret_for("http://env.example", "MY_KEY") == "of-the-variable"


@pytest.mark.parametrize(("content", "why"), [(b"", "no secret"), (b"\xff", "not text")])
def test_a_file_without_a_secret_is_an_error(
    content: bytes, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(UsageError, match="No such file"):
        secret_for("http://localhost", "MY_KEY")
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(UsageError, match=why):
        secret_for("http://localhost", "MY_KEY")
