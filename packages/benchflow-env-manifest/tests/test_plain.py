"""Which commands mean the same with and without a shell."""

import pytest
from benchflow_env_manifest.services import plain_words


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("mail", ["mail"]),
        ("python3 -m mail  --port=80", ["python3", "-m", "mail", "--port=80"]),
        ("/opt/a-b/c.d serve --at 0.0.0.0:80", ["/opt/a-b/c.d", "serve", "--at", "0.0.0.0:80"]),
        ("a b@c 50% +x", ["a", "b@c", "50%", "+x"]),
    ],
)  # fmt: skip
def test_plain_words_are_split(command: str, words: list[str]):
    assert plain_words(command) == words


@pytest.mark.parametrize(
    "command",
    [
        "", " mail", "a | b", "a; b", "a && b", "a &", "a > b", "a $HOME", "a `b`", "a 'b'",
        'a "b"', "a *", "a ?", "a [b]", "a {b,c}", "a ~", "a # b", "a\nb", "a\tb", "a \\b",
        "!a", "X=1 a", "X+=1 a", "(a)", "a é",
    ],
)  # fmt: skip
def test_a_command_with_shell_syntax_runs_in_a_shell(command: str):
    assert plain_words(command) is None
