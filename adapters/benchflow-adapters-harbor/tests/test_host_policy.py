from pathlib import Path

import pytest
from benchflow_adapters_harbor import HostPolicy, load_harbor_task, refusals
from benchflow_adapters_harbor.compose import Compose
from benchflow_adapters_harbor.host_access import host_access_requests
from harbor_corpus import GOOD, TERMINAL_BENCH, task, without, write
from hypothesis import given
from hypothesis import strategies as st

OPEN = HostPolicy(networks=frozenset({"public", "no-network"}))
"""A machine where nobody enforces allowlists."""


def reasons(tmp_path: Path, files: dict[str, str], policy: HostPolicy | None = None) -> list[str]:
    found = load_harbor_task(write(tmp_path / "t", files))
    told = list(refusals(found, policy or HostPolicy()))
    assert all(refusal.where and refusal.hint for refusal in told)
    return [f"{(refusal.where or '').rpartition(':')[2]}: {refusal.reason}" for refusal in told]


@pytest.mark.parametrize("name", ["minimal", "steps", "compose", "legacy", "prebuilt"])
def test_a_task_that_can_run_is_not_refused(tmp_path: Path, name: str) -> None:
    assert reasons(tmp_path, GOOD[name]) == []


def test_an_old_task_can_be_run(tmp_path: Path) -> None:
    assert reasons(tmp_path, TERMINAL_BENCH) == []


def test_accelerators_are_refused_one_by_one(tmp_path: Path) -> None:
    told = reasons(tmp_path / "1", GOOD["accelerators"])
    assert [line.partition(":")[0] for line in told] == ["environment.gpus", "environment.tpu"]
    assert reasons(tmp_path / "2", GOOD["accelerators"], HostPolicy(gpus=True, tpus=True)) == []


def test_zero_gpus_is_not_a_request_for_a_gpu(tmp_path: Path) -> None:
    assert reasons(tmp_path, task("[environment]\ngpus = 0\n")) == []


def test_windows_is_refused_by_name(tmp_path: Path) -> None:
    assert reasons(tmp_path, GOOD["windows"]) == ["environment.os: needs Windows containers"]


def test_an_allowlist_is_refused_rather_than_run_open(tmp_path: Path) -> None:
    (told,) = reasons(tmp_path, GOOD["network"], OPEN)
    assert told.startswith("environment.network_mode: network mode 'allowlist'")


def test_an_allowlist_of_a_single_step_is_found(tmp_path: Path) -> None:
    files = GOOD["steps"]
    toml = files["task.toml"].replace('"no-network"', '"allowlist"')
    (told,) = reasons(tmp_path, files | {"task.toml": toml}, OPEN)
    assert told.startswith("steps.0.agent.network_mode")


INSIDE = ("127.0.0.1", "169.254.169.254", "8.0.0.0/5", "0.0.0.0/0", "fd00:ec2::254", "::/0")
INSIDE_6 = ("::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::/48", "::1")
"""Addresses of IPv6 that lead to one of IPv4."""


def test_an_allowlist_that_leads_into_the_networks_of_the_host_needs_the_flag(
    tmp_path: Path,
) -> None:
    hosts = ["example.org", "localhost", "192.0.2.1", "2001:db8::1", *INSIDE, *INSIDE_6]
    toml = f'[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = {hosts}\n'
    told = reasons(tmp_path / "1", task(toml.replace("'", '"')))
    refused = [line.partition(": ")[2].partition(" leads to this machine")[0] for line in told]
    assert len(refused) == len(INSIDE) + len(INSIDE_6)
    assert set(INSIDE) < set(refused)
    assert not {"example.org", "localhost", "192.0.2.1", "2001:db8::1"} & set(refused)
    trusted = HostPolicy(host_access=True)
    assert reasons(tmp_path / "2", task(toml.replace("'", '"')), trusted) == []


def test_a_task_without_anything_to_run_is_refused(tmp_path: Path) -> None:
    files = without(task(), "environment/Dockerfile") | {"environment/data": "x"}
    (told,) = reasons(tmp_path, files)
    assert "neither an image nor a Dockerfile" in told


@pytest.mark.parametrize(
    ("service", "key"),
    [
        ("privileged: true", "privileged"),
        ("network_mode: host", "network_mode"),
        ("pid: host", "pid"),
        ("devices: [/dev/kvm]", "devices"),
        ("cap_add: [net_admin, cap_sys_admin]", "cap_add"),
        ("security_opt: ['seccomp:unconfined']", "security_opt"),
        ("extends: {file: ../x.yaml, service: y}", "extends"),
        ("volumes: ['/var/run/docker.sock:/var/run/docker.sock']", "volumes.0"),
        ("volumes: ['data:/d', '~/.ssh:/s']", "volumes.1"),
        ("volumes: ['../../..:/s']", "volumes.0"),
        ("volumes: ['${HOME:-/root}:/s']", "volumes.0"),
        ("volumes: [{type: bind, source: /etc, target: /e}]", "volumes.0"),
        ("volumes: [{type: '${T:-bind}', source: data, target: /e}]", "volumes.0"),
        ("volumes: ['./${X:-../../..}:/s']", "volumes.0"),
        ("volumes: ['${HOST_ELSE:-/root}:/s']", "volumes.0"),
        ("volumes: ['${CONTEXT_DIR}/../..:/s']", "volumes.0"),
        ("volumes_from: ['container:other']", "volumes_from"),
        ("network_mode: '${M:-host}'", "network_mode"),
        ("network_mode: container:other", "network_mode"),
        ("cap_add: ['${C:-SYS_ADMIN}']", "cap_add"),
        ("security_opt: ['no-new-privileges:false']", "security_opt"),
        ("privileged: '${P:-true}'", "privileged"),
        ("env_file: /etc/environment", "env_file"),
        ("env_file: [{path: ../../.env}]", "env_file"),
        ("build: ../..", "build.context"),
        ("build: {context: ., dockerfile: /etc/passwd}", "build.dockerfile"),
        ("build: {context: ., ssh: [default]}", "build.ssh"),
        ("build: {context: ., network: host}", "build.network"),
        ("deploy: {resources: {reservations: {devices: [{driver: nvidia}]}}}", "deploy.resources"),
        ("gpus: all", "gpus"),
        ("post_start: [{command: x, privileged: true}]", "post_start"),
        ("provider: {type: program}", "provider"),
        ("some_future_key: 1", "some_future_key"),
    ],
)
def test_compose_services_that_reach_for_the_host_are_refused(
    tmp_path: Path, service: str, key: str
) -> None:
    files = task() | {"environment/docker-compose.yaml": f"services:\n  main:\n    {service}\n"}
    (told,) = reasons(tmp_path / "1", files)
    assert told.startswith(f"services.main.{key}:")
    assert reasons(tmp_path / "2", files, HostPolicy(host_access=True)) == []


@pytest.mark.parametrize(
    "text",
    [
        "include: [x.yaml]",
        "secrets: {s: {file: /etc/shadow}}",
        "secrets: {s: {environment: HOME}}",
        "configs: {s: {file: ../x}}",
        "volumes: {v: {driver_opts: {type: none, o: bind, device: /etc}}}",
        "volumes: {v: {external: true}}",
        "volumes: {v: {name: of-another}}",
        "volumes: {v: {driver: nfs}}",
        "networks: {n: {external: true}}",
        "networks: {n: {driver: host}}",
    ],
)
def test_compose_files_with_host_access_are_refused(tmp_path: Path, text: str) -> None:
    files = task() | {"environment/docker-compose.yaml": f"services: {{main: {{}}}}\n{text}\n"}
    assert len(reasons(tmp_path, files)) == 1


def test_volumes_of_the_task_and_the_runner_are_let_through(tmp_path: Path) -> None:
    volumes = "[./data:/d, 'named:/n', '${HOST_VERIFIER_LOGS_PATH}:/logs/verifier', /anonymous]"
    text = f"services: {{main: {{volumes: {volumes}, cap_add: [NET_ADMIN], secrets: [s],"
    text += " build: {context: ., args: {A: '${A}'}}, privileged: false, network_mode: 'service:x',"
    text += " deploy: {resources: {limits: {cpus: '${CPUS}'}}}, env_file: [./a.env]}, x: {}}\n"
    text += "secrets: {s: {file: ./s.txt}}\nvolumes: {named: {}, empty: }\nx-common: &c {a: 1}\n"
    text += "networks: {inner: {internal: true, driver: bridge}}\n"
    assert reasons(tmp_path, task() | {"environment/docker-compose.yaml": text}) == []


KEY_TEXT = """
services volumes networks secrets configs build context driver network type source path
env_file cap_add security_opt
deploy resources limits devices pid file
"""
KEYS = tuple(KEY_TEXT.split())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["/x", "a", "${A:-b}:c", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(service=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5), rest=VALUES)
def test_no_compose_document_crashes_the_search_for_host_access(
    service: dict[str, object], rest: object
) -> None:
    document = {"services": {"main": service}, "volumes": rest, "networks": rest, "secrets": rest}
    compose = Compose.model_validate({"services": document["services"], "document": document})
    for key, reason in host_access_requests(compose):
        assert key
        assert reason
