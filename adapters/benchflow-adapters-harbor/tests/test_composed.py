import json
from pathlib import Path

import pytest
from benchflow_adapters_harbor import load_harbor_task
from benchflow_adapters_harbor.lowering import lower
from benchflow_adapters_harbor.lowering.composed.interpolation import interpolate
from benchflow_contracts import ContainerOptions, ServiceHealth, Task, TaskError
from harbor_corpus import write
from hypothesis import given
from hypothesis import strategies as st

FILES = {
    "task.toml": "",
    "instruction.md": "Ask the page.\n",
    "environment/Dockerfile": "FROM base\n",
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
}


def lowered(root: Path, compose: str, **files: str) -> Task:
    named = {name.replace("__", "/"): text for name, text in files.items()}
    write(root, FILES | {"environment/docker-compose.yaml": compose} | named)
    return lower(load_harbor_task(root))


def test_each_form_of_a_service_is_lowered_to_the_same(tmp_path: Path) -> None:
    short = """
services:
  main:
    depends_on: [db]
    environment: [A=1, B=two words, OPERATORS]
  db:
    image: postgres:16
    command: postgres -c 'log_statement=all'
    environment: ["POSTGRES_PASSWORD=x", "DEBUG=true"]
    volumes: ["data:/var/lib/postgresql/data", "./init.sql:/init.sql:ro"]
    tmpfs: /scratch
    mem_limit: 512m
    restart: unless-stopped
    ports: ["5432:5432"]
volumes: {data: }
"""
    long = """
x-common: &common {mem_limit: 0.5g}
services:
  main:
    depends_on: {db: {condition: service_started}}
    environment: {A: 1, B: two words, OPERATORS: }
  db:
    <<: *common
    image: ${IMAGE:-postgres:16}
    command: [postgres, -c, log_statement=all]
    environment: {POSTGRES_PASSWORD: x, DEBUG: true}
    volumes:
      - {type: volume, source: data, target: /var/lib/postgresql/data}
      - {type: bind, source: ./init.sql, target: /init.sql, read_only: true}
    tmpfs: [/scratch]
    restart: always
    expose: [5432]
volumes: {data: {}}
"""
    tasks = [
        lowered(tmp_path / str(index), text, **{"environment__init.sql": ""})
        for index, text in enumerate((short, long))
    ]
    first, second = (task.parts.services[0] for task in tasks)
    assert first.model_copy(update={"files": {}}) == second.model_copy(update={"files": {}})
    assert first.image == "postgres:16"
    assert first.command == ("postgres", "-c", "log_statement=all")
    assert first.env == {"POSTGRES_PASSWORD": "x", "DEBUG": "true"}
    assert first.volumes == {"/var/lib/postgresql/data": "data"}
    assert [path.name for path in first.files.values()] == ["init.sql"]
    assert first.limits.memory_mb == 512
    for task in tasks:
        assert task.parts.container.needs == {"db": "started"}
        assert task.config.environment.env == {"A": "1", "B": "two words"}


def test_healthchecks_and_conditions_have_the_values_of_the_file(tmp_path: Path) -> None:
    task = lowered(
        tmp_path,
        """
services:
  main:
    depends_on:
      web: {condition: service_healthy}
      seed: {condition: service_completed_successfully, required: false}
      absent: {condition: service_started, required: false}
    healthcheck: {test: [CMD, test, -e, "/a b"], interval: 500ms}
  web:
    build: {context: web, dockerfile: Web.dockerfile}
    healthcheck: {test: curl -f localhost, interval: 1m30s, timeout: 2s, retries: 7}
    networks: {default: {aliases: [pages]}}
    hostname: web1
  seed: {image: busybox, healthcheck: {disable: true}}
""",
        **{"environment__web__Web.dockerfile": "FROM x\n"},
    )
    web, seed = task.parts.services
    assert task.parts.container.needs == {"web": "healthy", "seed": "completed"}
    assert web.health == ServiceHealth(
        test=("CMD-SHELL", "curl -f localhost"), interval_sec=90, timeout_sec=2, retries=7
    )
    assert seed.health is not None
    assert seed.health.test == ("NONE",)
    assert (web.networks, web.hostname) == ({"default": ("pages",)}, "web1")
    assert web.recipe is not None
    assert web.recipe.context == tmp_path.resolve() / "environment" / "web"
    assert web.recipe.dockerfile == "Web.dockerfile"
    check = task.config.environment.healthcheck
    assert check is not None
    assert (check.command, check.interval_sec) == ("test -e '/a b'", 0.5)


def test_the_runners_variables_and_those_of_the_task_are_filled_in(tmp_path: Path) -> None:
    task = lowered(
        tmp_path,
        """
services:
  main:
    build: {context: "${CONTEXT_DIR}"}
    command: [sh, -c, sleep infinity]
    volumes: ["${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}"]
    environment: {MODE: "${MODE}", COST: "$$5"}
  db: {image: "db:$TAG", cpus: "${CPUS}", mem_limit: "${MEMORY}"}
""",
        **{
            "task.toml": "[environment]\ncpus = 2\nmemory_mb = 64\n"
            '[environment.env]\nMODE = "fast"\nTAG = "3"\n'
        },
    )
    db = task.parts.services[0]
    assert (db.image, db.limits.cpus, db.limits.memory_mb) == ("db:3", 2.0, 64)
    assert task.config.environment.env == {"MODE": "fast", "COST": "$5", "TAG": "3"}
    assert task.parts.container == ContainerOptions()
    assert task.parts.recipe is not None


@pytest.mark.parametrize(
    ("compose", "where"),
    [
        ("services: {db: {image: x, sysctls: {a: 1}}}", "db:sysctls"),
        ("services: {db: {image: x, secrets: [s]}}", "db.secrets"),
        ("services: {db: {image: x, secrets: [s]}}\nsecrets: {s: {content: x}}", "db.secrets"),
        ("services: {db: {image: x, restart: sometimes}}", "db.restart"),
        ("services: {db: {image: x, deploy: {replicas: 2}}}", "db:deploy"),
        ("services: {db: {image: x, healthcheck: {test: a, interval: soon}}}", "interval"),
        ("services: {db: {image: x, mem_limit: much}}", "mem_limit"),
        ("services: {db: {image: '${SECRET}'}}", "db"),
        ("services: {db: {}}", "db"),
        ("services: {db: {build: ./absent}}", "db.build"),
        ("services: {db: {build: {dockerfile: D, dockerfile_inline: FROM x}}}", "db.build"),
        ("services: {db: {image: x, volumes: ['./absent:/a']}}", "db.volumes"),
        ("services: {main: {read_only: true}}", "main.read_only"),
        ("services: {main: {network_mode: none}}", "main.network_mode"),
        ("services: {main: {profiles: [late]}}", "main.profiles"),
        ("services: {main: {volumes: ['./tests:/tests']}}", "main.volumes"),
        ("services: {db: {image: x, network_mode: 'service:main'}}", "db.network_mode"),
        ("services: {db: {image: x, network_mode: bridge}}", "db:network_mode"),
        ("services: {db: {image: x, extra_hosts: ['a:host-gateway']}}", "db.extra_hosts"),
        ("services: {db: {image: x, env_file: absent.env}}", "db.env_file"),
        ("services: {db: {extends: other}}", "services.other"),
        ("services: {db: {extends: {service: x, file: absent.yaml}}}", "extends.file"),
        ("services: {a: {extends: b}, b: {extends: a}}", "services."),
        (
            "services: {a: {depends_on: [b], image: x}, b: {image: x, profiles: [p]}}",
            "a.depends_on",
        ),
        ("services: {db: {image: x, depends_on: {main: {condition: later}}}}", "depends_on"),
    ],
)
def test_unsupported_settings_of_services_are_refused_with_their_key(
    tmp_path: Path, compose: str, where: str
) -> None:
    with pytest.raises(TaskError) as caught:
        lowered(tmp_path, compose)
    assert "docker-compose.yaml" in str(caught.value.where)
    assert where in str(caught.value.where)


def test_a_capability_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="default capabilities") as caught:
        lowered(tmp_path, "services: {db: {image: x, cap_add: [NET_ADMIN]}}")
    assert "services.db:cap_add" in str(caught.value.where)


def test_a_link_out_of_the_task_is_not_a_file_of_a_service(tmp_path: Path) -> None:
    compose = "services: {db: {image: x, volumes: ['./conf:/conf:ro']}}"
    write(tmp_path / "task", FILES | {"environment/docker-compose.yaml": compose})
    (tmp_path / "task/environment/conf").symlink_to("/etc")
    with pytest.raises(TaskError, match="below environment"):
        lower(load_harbor_task(tmp_path / "task"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(VALUES)
def test_variables_are_filled_into_any_document_or_it_is_refused(document: object) -> None:
    try:
        found = interpolate(document, {"A": "1"})
    except ValueError:
        assert "$" in json.dumps(document)
        return
    if "$" not in json.dumps(document):
        assert found == document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A-${A}", "1-1"),
        ("${B:-x}${B-y}${E:-z}${E-w}", "xyz"),
        ("${A:+set}${B:+set}", "set"),
        ("$$A", "$A"),
    ],
)
def test_the_forms_of_variables_have_the_meaning_of_compose(text: str, value: str) -> None:
    assert interpolate(text, {"A": "1", "E": ""}) == value
