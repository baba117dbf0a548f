"""Addresses of foreign environments, as tasks name them."""

import pytest
from benchflow_contracts import TaskError
from benchflow_env_outside import HOSTS, world_url


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
