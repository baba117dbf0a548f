"""What `load_manifest` accepts and how it refuses the rest."""

import contextlib
import os
from pathlib import Path

import pytest
from benchflow_contracts import ManifestError
from benchflow_env_manifest import Manifest, load_manifest, parse_manifest
from hypothesis import given, settings
from hypothesis import strategies as st

CLAWSBENCH = """
[environment]
name           = "clawsbench"
base_image     = "example/base:latest"
owns_lifecycle = false
isolation      = "per_task"

[environment.task_selection]
mechanism = "image"

[environment.readiness]
timeout_sec = 60

[environment.forward_env]
keys = ["MODEL_KEY"]

[environment.state]
paths = ["/data/gmail.db"]

[[environment.services]]
name    = "gmail"
command = "claw-gmail --db /data/gmail.db serve --host 0.0.0.0 --port 9001 --no-mcp"
port    = 9001

[[environment.services]]
name        = "gcal"
command     = "claw-gcal serve"
port        = 9003
health_path = "/ready"
"""

CHI_BENCH = """
[environment]
name           = "chi-bench"
image          = "chi-bench:latest"
owns_lifecycle = true
ports          = [8020, 8023]

[environment.task_selection]
mechanism   = "env_var"
key         = "CHI_BENCH_TASK_ID"
inject_into = "entrypoint"

[environment.readiness]
http        = ["http://localhost:8023/health"]
tcp         = [8020]
timeout_sec = 120

[verifier]
kind              = "agent"
hidden_from_agent = ["expectations.json", "tasks/*/fixtures"]
"""


def refusal(text: str) -> str:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text.encode())
    assert caught.value.hint
    return str(caught.value)


def test_a_framework_started_manifest_is_read_with_every_field():
    manifest = parse_manifest(CLAWSBENCH.encode())
    environment = manifest.environment
    assert manifest.image == "example/base:latest"
    assert [service.name for service in environment.services] == ["gmail", "gcal"]
    assert environment.services[0].health_url == "http://localhost:9001/health"
    assert environment.services[1].health_url == "http://localhost:9003/ready"
    assert environment.forward_env.keys == ("MODEL_KEY",)

    assert [table.model_dump() for table in environment.state] == [
        {"kind": "sqlite", "paths": ("/data/gmail.db",)}
    ]
    assert environment.keep_alive


def test_an_image_owned_manifest_is_read_with_its_verifier_table():
    manifest = parse_manifest(CHI_BENCH.encode())
    assert manifest.image == "chi-bench:latest"
    assert manifest.environment.ports == (8020, 8023)
    assert manifest.environment.readiness.tcp == (8020,)
    assert manifest.environment.state == ()
    assert manifest.verifier.kind == "agent"
    assert manifest.verifier.hidden_from_agent == ("expectations.json", "tasks/*/fixtures")


def test_the_defaults_are_those_of_the_schema():
    environment = parse_manifest(b'[environment]\nname = "x"\nimage = "y"').environment
    assert environment.owns_lifecycle
    assert environment.isolation == "per_task"
    assert environment.task_selection.mechanism == "env_var"
    assert environment.task_selection.key == "BENCHFLOW_TASK_ID"
    assert environment.task_selection.inject_into == "entrypoint"
    assert environment.readiness.timeout_sec == 120


def test_every_problem_is_listed_with_its_file_and_key(tmp_path: Path):
    path = tmp_path / "environment.toml"
    path.write_text(
        '[environment]\nname = 1\nimage = "a"\nbase_image = "b"\ncolour = "red"\n'
        "[environment.readiness]\ntcp = [0]\n"
        '[[environment.services]]\nname = "a"\ncommand = "a"\nport = "9"\n'
    )
    with pytest.raises(ManifestError) as caught:
        load_manifest(path)
    lines = str(caught.value).splitlines()
    keys = [line.removeprefix(f"{path}:").split(":")[0] for line in lines]
    assert sorted(keys) == [
        "environment.base_image",
        "environment.colour",
        "environment.name",
        "environment.readiness.tcp[0]",
        "environment.services",
        "environment.services[0].port",
    ]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('base_image     = "example/base:latest"', "", "environment.image"),
        ('"example/base:latest"', '"/root"', "environment.base_image"),
        ("owns_lifecycle = false", "", "environment.services"),
        ("port        = 9003", "port = 9001", "environment.services[1].port"),
        ("port        = 9003", "port = 65536", "environment.services[1].port"),
        ("port        = 9003", "port = true", "environment.services[1].port"),
        ("port        = 9003", "port = 9003.0", "environment.services[1].port"),
        ('name        = "gcal"', 'name = "gmail"', "environment.services[1].name"),
        ('name        = "gcal"', 'name = "../x"', "environment.services[1].name"),
        ('"/ready"', '"ready"', "environment.services[1].health_path"),
        ('"/ready"', '"/a b"', "environment.services[1].health_path"),
        ('"/data/gmail.db"', '"data/gmail.db"', "environment.state.paths[0]"),
        ('"/data/gmail.db"', '"/data/../etc/x"', "environment.state.paths[0]"),
        ('"/data/gmail.db"', '"/.bf-state/x"', "environment.state.paths[0]"),
        ('"/data/gmail.db"', '"/d/a", "/d/a"', "environment.state.paths[1]"),
        ('["MODEL_KEY"]', '["MODEL-KEY"]', "environment.forward_env.keys[0]"),
        ("timeout_sec = 60", "timeout_sec = 0", "environment.readiness.timeout_sec"),
        ("timeout_sec = 60", 'http = ["http://example.org/"]', "environment.readiness.http[0]"),
        ("timeout_sec = 60", 'http = ["file:///etc"]', "environment.readiness.http[0]"),
        ("timeout_sec = 60", 'http = ["http://u@localhost/"]', "environment.readiness.http[0]"),
        ('isolation      = "per_task"', 'isolation = "none"', "environment.isolation"),
        ('mechanism = "image"', 'mechanism = "magic"', "environment.task_selection.mechanism"),
        ('mechanism = "image"', 'key = "A=B"', "environment.task_selection.key"),
    ],
)
def test_a_broken_key_is_named(old: str, new: str, key: str):
    assert old in CLAWSBENCH
    message = refusal(CLAWSBENCH.replace(old, new))
    assert message.startswith(f"environment.toml:{key}: "), message
    assert "\n" not in message


KINDS = """
[environment]
name = "shop"
image = "shop"
[[environment.state]]
paths = ["/data/a.db"]
[[environment.state]]
kind = "files"
paths = ["/data/files"]
[[environment.state]]
kind = "redis"
port = 6380
[[environment.state]]
kind = "postgres"
name = "orders"
host = "/run/postgresql"
[[environment.state]]
kind = "command"
snapshot = "save"
restore = "load"
[[environment.state]]
kind = "process"
service = "engine"
[[environment.invariants]]
name = "sum"
state = "orders"
sql = "SELECT 1"
expect = 1
[[environment.invariants]]
name = "whole"
command = "true"
[environment.fork]
reseed = ["reseed $BENCHFLOW_SEED"]
"""


def test_every_kind_of_state_is_read_with_its_defaults():
    environment = parse_manifest(KINDS.encode()).environment
    kinds = [table.kind for table in environment.state]
    assert kinds == ["sqlite", "files", "redis", "postgres", "command", "process"]
    assert [invariant.expect for invariant in environment.invariants] == [1, None]
    assert environment.fork.reseed == ("reseed $BENCHFLOW_SEED",)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('kind = "redis"', 'kind = "mongo"', "environment.state[2]"),
        ('["/data/files"]', "[]", "environment.state[1].paths"),
        ('["/data/files"]', '["/data/a.db"]', "environment.state[1].paths[0]"),
        ('["/data/files"]', '["/proc/x"]', "environment.state[1].paths[0]"),
        ("port = 6380", "port = 0", "environment.state[2].port"),
        ('name = "orders"', 'name = "redis"', "environment.state[3].name"),
        ('"/run/postgresql"', '"db.example"', "environment.state[3].host"),
        ('restore = "load"', "", "environment.state[4].restore"),
        ('snapshot = "save"', 'snapshot = "save"\ncolour = 1', "environment.state[4].colour"),
        ('state = "orders"', 'state = "redis"', "environment.invariants[0].state"),
        ("expect = 1", "", "environment.invariants[0].expect"),
        ('command = "true"', "", "environment.invariants[1]"),
    ],
)
def test_a_broken_key_of_the_state_is_named(old: str, new: str, key: str):
    assert old in KINDS
    lines = refusal(KINDS.replace(old, new)).splitlines()
    assert any(line.startswith(f"environment.toml:{key}: ") for line in lines), lines


def test_services_are_demanded_when_the_image_does_not_start_them():
    text = '[environment]\nname = "x"\nimage = "y"\nowns_lifecycle = false'
    assert refusal(text).startswith("environment.toml:environment.services: ")


@pytest.mark.parametrize("pattern", ["..", "../x", "a/**", "/", "."])
def test_a_hidden_pattern_that_could_reach_too_far_is_refused(pattern: str):
    assert "verifier.hidden_from_agent[0]" in refusal(
        CHI_BENCH.replace('"expectations.json"', f'"{pattern}"')
    )


def test_a_syntax_error_names_its_line():
    assert refusal('[environment]\nname = "x"\nimage = = 3').startswith("environment.toml:3: ")
    assert refusal('[environment]\nname = "x').startswith("environment.toml:2: ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a." * 20_000 + "a = 1", "more than 32 dots"),
        ("x = {a = 1, " + "a." * 20_000 + "a = 1}", "more than 32 dots"),
        ('x = {a = """b"""", ' + "a." * 20_000 + "a = 1}", "more than 32 dots"),
        ("x = ['''b''''', {" + "a." * 20_000 + "a = 1}]", "more than 32 dots"),
        ("[" + "a." * 20_000 + "a]", "more than 32 dots"),
        ("x = " + "[" * 30_000, "nested more than 32 deep"),
        ("x = " + "{a=" * 15_000, "nested more than 32 deep"),
        ("x = '''" + "a" * 70_000 + "'''", "larger than 65536 bytes"),
        ("x = " + "9" * 60_000, "not TOML"),
        ("[environment]\nports = [0x" + "f" * 60_000 + "]", "a huge integer"),
    ],
)
def test_a_manifest_bomb_is_refused_by_a_cap(text: str, reason: str):
    assert reason in refusal(text)


def test_dots_and_brackets_inside_strings_and_comments_do_not_count():
    noise = "." * 100 + "[" * 100
    text = f"# {noise}\n" + CHI_BENCH.replace('"expectations.json"', f"'x{noise}'")
    assert parse_manifest(text.encode()).verifier.hidden_from_agent[0] == f"x{noise}"


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path):
    path = tmp_path / "environment.toml"
    path.write_bytes(b"[environment]\nname = '\xff'\n")
    with pytest.raises(ManifestError, match=r"environment\.toml:2: not UTF-8"):
        load_manifest(path)


def test_a_missing_file_and_a_pipe_are_refused(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path / "absent.toml", pipe, tmp_path):
        with pytest.raises(ManifestError, match=r"cannot read|not a regular file"):
            load_manifest(path)


NAMES = """
    environment name image base_image ports services verifier state paths kind readiness http
    tcp port command owns_lifecycle timeout_sec forward_env keys task_selection
    invariants sql expect fork reseed service snapshot restore
"""
KEYS = st.sampled_from(NAMES.split())
TOKENS = st.one_of(
    KEYS,
    st.sampled_from([*"[]{}.,=\n\"'# ", '"""', "'''", "[[", "]]", "\n[", "true", "1"]),
    st.text(max_size=5),
    st.integers().map(str),
)
VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


def toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(char):08x}" for char in value) + '"'
    return repr(value)


def outcome(text: str) -> None:
    try:
        assert isinstance(parse_manifest(text.encode("utf-8", "replace")), Manifest)
    except ManifestError as caught:
        error = caught
    else:
        return
    assert str(error).startswith("environment.toml")
    assert error.hint


@settings(max_examples=400)
@given(st.lists(TOKENS, max_size=60).map("".join))
def test_any_text_yields_a_manifest_or_a_manifest_error(text: str):
    outcome(text)


@settings(max_examples=300)
@given(st.dictionaries(KEYS, VALUES, max_size=6), st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_toml_document_yields_a_manifest_or_a_manifest_error(environment: dict, rest: dict):
    rest.pop("environment", None)
    lines = [f"{key} = {toml(value)}" for key, value in rest.items()]
    lines.append(f"environment = {toml(environment)}")
    outcome("\n".join(lines))


@settings(max_examples=50)
@given(st.binary(max_size=400), st.integers(1, 160))
def test_any_bytes_repeated_to_the_cap_are_answered_in_bounded_time(chunk: bytes, times: int):
    with contextlib.suppress(ManifestError):
        parse_manifest(chunk * times)
