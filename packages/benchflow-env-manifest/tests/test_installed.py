"""Which part of a service's command is what has to be installed."""

import pytest
from benchflow_env_manifest.installed import entry_point
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("command", "entry"),
    [
        ("claw-gmail --db /data/a.db serve", ["claw-gmail"]),
        ("A=1 exec B=2 claw-gmail serve", ["claw-gmail"]),
        ("python3 -m claw.gmail --port 1", ["python3", "-m", "claw.gmail"]),
        (
            "/usr/bin/python3.12 -u -X utf8 /srv/world.py -v",
            ["/usr/bin/python3.12", "-u", "-X", "utf8", "/srv/world.py"],
        ),
        ("python3 -c 'import this'", ["python3"]),
        ("sh -c 'serve | tee log'", ["sh"]),
        ("serve 'unclosed", ["sh"]),
        ("A=1", ["sh"]),
    ],
)
def test_the_entry_point_is_the_program_and_the_script_of_an_interpreter(
    command: str, entry: list[str]
):
    assert entry_point(command) == entry


@given(st.text())
def test_any_command_has_an_entry_point(command: str):
    assert entry_point(command)
