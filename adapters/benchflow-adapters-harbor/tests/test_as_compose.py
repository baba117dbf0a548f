"""The reader of compose itself and ours, side by side."""

import json
import os
import string
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_harbor import load_harbor_task
from benchflow_adapters_harbor.lowering import lower
from benchflow_contracts import ServiceSpec, TaskError
from harbor_corpus import write
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

VARIABLES = {"A": "1", "EMPTY": "", "TWO": "two words"}
TASK = {
    "task.toml": "[environment.env]\n" + "".join(f'{k} = "{v}"\n' for k, v in VARIABLES.items()),
    "instruction.md": "Ask the page.\n",
    "environment/Dockerfile": "FROM base\n",
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
}
FILES = {
    "plain-types": """
services:
  a:
    image: x
    environment: {F: 1.0, ON: on, OCTAL: 012, E: 1e3, TIME: 22:22, HEX: 0x1F, YES: yes, T: true}
    command: sh -c 'echo "$$HOME"'
    ports: ["22:22"]
    restart: no
""",
    "merge-keys": """
x-common: &common
  environment: &env {A: base, B: base}
  tmpfs: [/a]
services:
  a:
    <<: *common
    image: x
    environment: {<<: *env, B: over}
    x-anything: {at: all}
  b:
    <<: [{image: y}, *common]
    image: z
""",
    "extended": """
services:
  base:
    image: x
    command: [a, b]
    user: "5"
    environment: [P=1, Q=base]
    tmpfs: /a
    volumes: ["./conf:/conf:ro", "data:/data"]
    depends_on: [other]
    healthcheck: {test: [CMD, a], interval: 3s, retries: 7}
    networks: [back]
    ulimits: {nofile: 3}
    extra_hosts: ["one:192.0.2.1"]
    build: {context: ., args: {K: 1}}
  middle:
    extends: base
    environment: {Q: middle}
  over:
    extends: {service: middle}
    command: c
    environment: {Q: over, R: 3}
    tmpfs: [/b]
    volumes: ["./other:/conf", "more:/more"]
    depends_on: {late: {condition: service_healthy}}
    healthcheck: {retries: 2}
    networks: {front: {aliases: [z]}}
    ulimits: {nofile: {soft: 1, hard: 2}, core: 4}
    extra_hosts: ["two=192.0.2.2"]
    build: {args: [L=2], target: stage}
  other: {image: y}
  late: {image: y, healthcheck: {test: curl localhost}}
networks: {back: , front: {internal: true}}
volumes: {data: , more: }
""",
    "extended-from-another-file": """
services:
  over:
    extends: {file: sub/other.yaml, service: base}
    environment: {B: over}
""",
    "files-of-variables": """
services:
  a:
    image: x
    env_file: [a.env, {path: b.env, required: true}, {path: absent.env, required: false}]
    environment: [OVER=environment, ONE, A, UNKNOWN]
""",
    "profiles": """
services:
  a: {image: x, depends_on: {b: {condition: service_started, required: false}}}
  b: {image: x, profiles: [late]}
""",
    "several-networks": """
services:
  a: {image: x, networks: [front]}
  b: {image: x, networks: {front: {aliases: [shop, store]}, back: }}
  c: {image: x, network_mode: none}
  d: {image: x, network_mode: "service:a"}
networks: {front: , back: {internal: true}}
""",
    "inline": """
services:
  a: {build: {dockerfile_inline: "FROM ${A}\nRUN echo $$HOME\n", args: {B: c}, target: t}}
  b: {build: {context: ./sub, dockerfile_inline: ""}}
  c: {extends: a, build: {context: sub}}
""",
    "granted": """
services:
  a:
    image: x
    secrets: [s, {source: s, target: other}, {source: s, target: /abs/olute}]
    configs: [c, {source: c, target: /etc/c.conf, mode: 0440}, {source: t, target: /t}]
secrets: {s: {file: ./conf}}
configs:
  c: {file: ./other}
  t: {content: "made of ${A} $$5\n"}
""",
    "health": """
services:
  a: {image: x, healthcheck: {test: true thing, interval: 1m30s, timeout: 500ms}}
  b: {image: x, healthcheck: {test: [NONE]}}
  c: {image: x, healthcheck: {disable: true}}
  d: {image: x, healthcheck: {test: [CMD-SHELL, a b], start_period: 1h, start_interval: 1s}}
""",
    "restarted": """
services:
  a: {image: x, restart: on-failure}
  b: {image: x, restart: "on-failure:3"}
  c: {image: x, restart: always}
  d: {image: x, restart: unless-stopped}
  e: {image: x, restart: "no"}
""",
    "limits": """
services:
  a:
    image: x
    shm_size: 64m
    mem_limit: 1g
    hostname: named
    read_only: true
    working_dir: /srv
    entrypoint: run --all "of it"
    ulimits: {nofile: 9}
  b:
    image: x
    deploy: {resources: {limits: {memory: 512M, cpus: "0.5"}}, restart_policy: {condition: none}}
    restart: always
""",
    "dotenv-beside": 'services: {a: {image: "x:${TAG}", environment: [TAG, "B=${A}"]}}\n',
}
BESIDE = {
    "environment/conf": "conf\n",
    "environment/other": "other\n",
    "environment/.env": "TAG=beside\nA=beside\n",
    "environment/a.env": (
        "# c\nexport ONE=1\nQUOTED='two # $ONE'\nDOUBLE=\"three\\n$ONE ${ONE}x\" # c\n"
        'PLAIN=four # c\nHASH=fi#ve\nBARE\nCOLON: 7\nSPACED = 8\nLINES="multi\nline"\n'
        'FROM=$ONE-${NOPE:-d}\nESCAPED="a\\$b \\" \\t \\\\ x"\nRAW=a\\nb\nNOTHING=\nOVER=file\n'
    ),
    "environment/b.env": "SECOND=${ONE}\nOVER=second\n",
    "environment/sub/conf": "conf\n",
    "environment/sub/x.env": "FROM_SUB=1\nB=file\n",
    "environment/sub/ctx/Dockerfile": "FROM base\n",
    "environment/sub/other.yaml": """
services:
  root: {build: ./ctx, environment: {B: root, C: root}}
  base:
    extends: root
    env_file: x.env
    volumes: ["./conf:/conf:ro"]
    environment: {B: base}
""",
}


@pytest.fixture(scope="module")
def client(compose: str) -> dict[str, str]:
    """Return the environment of a client that has compose."""
    return {"DOCKER_CONFIG": compose, "PATH": f"{compose}/bin:{os.environ['PATH']}", **VARIABLES}


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_same_result_as_in_compose(
    tmp_path: Path, client: dict[str, str], name: str
) -> None:
    read, made = both(tmp_path, FILES[name], client)
    assert read == made


def both(
    root: Path, compose: str, client: dict[str, str], files: Mapping[str, str] = BESIDE
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what we read of a file, and what compose prints of it."""
    # On a directory below, as paths of the operator may be anything.
    root = write(root / "task", {**TASK, **files, "environment/docker-compose.yaml": compose})
    printed = subprocess.run(
        ["docker", "compose", "config", "--format", "json"],
        cwd=root / "environment",
        env=client,
        capture_output=True,
        text=True,
        check=False,
    )
    assert printed.returncode == 0, printed.stderr
    document = json.loads(printed.stdout.replace("$$", "$"))
    grants = {**document.get("secrets", {}), **document.get("configs", {})}
    made = {
        name: of_compose(service, {k: v.get("file", v) for k, v in grants.items()})
        for name, service in document["services"].items()
    }
    task = lower(load_harbor_task(root))
    inner = {n for n, each in document.get("networks", {}).items() if each.get("internal")}
    assert task.parts.inner_networks == inner
    return {each.name: of_ours(each) for each in task.parts.services}, made


CONDITIONS = {"service_started": "started", "service_healthy": "healthy"}
RESTARTS = {
    "no": 0,
    "on-failure": 10,
    "on-failure:3": 3,
    "always": "always",
    "unless-stopped": "always",
}
LIMITS = {"h": 3600, "m": 60, "s": 1}


def of_compose(service: dict[str, Any], grants: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service that compose printed, as `of_ours` returns ours."""
    volumes = service.get("volumes", [])
    files = {v["target"]: v["source"] for v in volumes if v["type"] == "bind"}
    for kind, place in (("secrets", "/run/secrets/"), ("configs", "/")):
        for each in service.get(kind, []):
            target = each.get("target") or each["source"]
            target = target if target.startswith("/") else place + target
            files[target] = grants[each["source"]]
    texts = {path: given["content"] for path, given in files.items() if isinstance(given, dict)}
    build, mode = service.get("build"), service.get("network_mode")
    networks = {} if mode else service["networks"]
    aliases = {n: tuple((each or {}).get("aliases", ())) for n, each in networks.items()}
    limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
    hosts = (text.split("=") for text in service.get("extra_hosts", ()))
    memory = int(service.get("mem_limit") or limits.get("memory") or 0)
    needs = {
        name: CONDITIONS[each["condition"]]
        for name, each in service.get("depends_on", {}).items()
        if each["required"] and name not in {(mode or "").partition(":")[2]}
    }
    return {
        "image": None if build else service.get("image"),
        "build": build and (build["context"], build.get("target", "")),
        "dockerfile": build
        and (build.get("dockerfile_inline") or build.get("dockerfile", "Dockerfile")),
        "args": build and build.get("args", {}),
        "command": service["command"],
        "entrypoint": service["entrypoint"],
        "env": {k: v for k, v in service.get("environment", {}).items() if v is not None},
        "user": service.get("user", ""),
        "workdir": service.get("working_dir", ""),
        "hostname": service.get("hostname", ""),
        "hosts": dict(hosts),
        "needs": needs,
        "networks": {} if aliases == {"default": ()} else aliases,
        "mode": mode,
        "volumes": {v["target"]: v["source"] for v in volumes if v["type"] == "volume"},
        "files": {path: given for path, given in files.items() if path not in texts},
        "texts": texts,
        "tmpfs": service.get("tmpfs", []),
        "ulimits": {name: limits_of(each) for name, each in service.get("ulimits", {}).items()},
        "shm_mb": int(service["shm_size"]) >> 20 if "shm_size" in service else None,
        "read_only": service.get("read_only", False),
        "memory_mb": memory >> 20 or None,
        "cpus": limits.get("cpus"),
        "restarts": RESTARTS[service.get("restart", "no")],
        "health": health_of(service.get("healthcheck")),
    }


def limits_of(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value["soft"], value["hard"])


def health_of(check: dict[str, Any] | None) -> Any:
    if check is None:
        return None
    if check.get("disable") or check["test"] == ["NONE"]:
        return ["NONE"]
    defaults = {"interval": "30s", "timeout": "30s", "start_period": "0s"}
    seconds = [in_seconds(check.get(name, default)) for name, default in defaults.items()]
    within = check.get("start_interval")
    return [*check["test"], *seconds, check.get("retries", 3), within and in_seconds(within)]


def in_seconds(text: str) -> float:
    """Read a duration as Go prints it."""
    if text.endswith("ms"):
        return float(text.removesuffix("ms")) / 1000
    total, number = 0.0, ""
    for letter in text:
        if letter in LIMITS:
            total, number = total + LIMITS[letter] * float(number), ""
        else:
            number += letter
    return total


def of_ours(spec: ServiceSpec) -> dict[str, Any]:
    recipe, health = spec.recipe, spec.health
    checked = health and [
        *health.test,
        *([] if health.test == ("NONE",) else seconds_of(health)),
    ]
    mode = {None: None, "": "none"}.get(spec.network_of, f"service:{spec.network_of}")
    return {
        "image": spec.image,
        "build": recipe and (str(recipe.context), recipe.target),
        "dockerfile": recipe and (recipe.inline or recipe.dockerfile),
        "args": recipe and dict(recipe.args),
        "command": spec.command and list(spec.command),
        "entrypoint": spec.entrypoint and list(spec.entrypoint),
        "env": spec.env,
        "user": spec.user,
        "workdir": spec.workdir,
        "hostname": spec.hostname,
        "hosts": spec.hosts,
        "needs": spec.needs,
        "networks": {} if spec.networks == {"default": ()} else spec.networks,
        "mode": mode,
        "volumes": spec.volumes,
        "files": {target: str(path) for target, path in spec.files.items()},
        "texts": spec.texts,
        "tmpfs": list(spec.tmpfs),
        "ulimits": spec.ulimits,
        "shm_mb": spec.shm_mb,
        "read_only": spec.read_only,
        "memory_mb": spec.limits.memory_mb,
        "cpus": spec.limits.cpus,
        "restarts": spec.restarts,
        "health": checked,
    }


def seconds_of(health: Any) -> list[float]:
    periods = [health.interval_sec, health.timeout_sec, health.start_period_sec]
    return [*periods, health.retries, health.start_interval_sec]


PLAIN = st.text(string.ascii_letters + " -./:+?=#'\"\\", max_size=6)
NAMES = st.sampled_from(["A", "EMPTY", "TWO", "NOPE"])


def forms(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return texts with variables, whose defaults are such texts."""
    rule = st.sampled_from([":-", "-", ":+", "+"])
    form = st.one_of(
        PLAIN,
        st.just("$$"),
        st.sampled_from(["$A.", "${TWO}", "$EMPTY-", "$NOPE.", "${NOPE}"]),
        st.builds("${{{}{}{}}}".format, NAMES, rule, inner),
    )
    return st.lists(form, max_size=4).map("".join)


TEXTS = forms(forms(PLAIN))
MADE = settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    # Each example is a process: what fails is shown as it is.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


@MADE
@given(texts=st.lists(TEXTS, min_size=20, max_size=40))
def test_variables_are_filled_in_as_compose_does(client: dict[str, str], texts: list[str]) -> None:
    environment = {f"V{index}": text for index, text in enumerate(texts)}
    compose = json.dumps({"services": {"a": {"image": "x", "environment": environment}}})
    with tempfile.TemporaryDirectory() as name:
        read, made = both(Path(name), compose, client, {})
    assert read["a"]["env"] == made["a"]["env"]


VALUES = st.one_of(
    st.text(string.ascii_letters + " -./:+#\\", max_size=8).filter(lambda t: t[:1] not in "#"),
    st.text(string.ascii_letters + ' $#\n"', max_size=8).map("'{}'".format),
    st.lists(
        st.sampled_from([*"abc #'", "\n", "\\n", "\\t", '\\"', "\\\\", "\\$", "$A.", "${NOPE:-x}"]),
        max_size=8,
    ).map(lambda parts: f'"{"".join(parts)}"'),
    st.sampled_from(
        ["$A", "${A}x", "$NOPE", "${NOPE}", "${NOPE:-y}", "a # c", "'a' # c", '"a" # c']
    ),
)
LINE = st.tuples(st.sampled_from(["{}={}", "export {}={}", "{}: {}", "{} = {}"]), VALUES)


@MADE
@given(lines=st.lists(LINE, min_size=10, max_size=30))
def test_files_of_variables_are_read_as_compose_does(
    client: dict[str, str], lines: list[tuple[str, str]]
) -> None:
    text = "".join(f"{form.format(f'V{i}', value)}\n" for i, (form, value) in enumerate(lines))
    compose = "services: {a: {image: x, env_file: made.env}}"
    with tempfile.TemporaryDirectory() as name:
        read, made = both(Path(name), compose, client, {"environment/made.env": text})
    assert read["a"]["env"] == made["a"]["env"]


@pytest.mark.parametrize(
    "text",
    [
        "services: {a: {image: '${NOPE:?needed}'}}",
        "services: {a: {image: '${A'}}",
        "services: {a: {image: x, depends_on: [b]}}",
        "services: {a: {image: x, depends_on: [b]}, b: {image: x, profiles: [p]}}",
        "services: {a: {extends: b}, b: {extends: a}}",
        "services: {a: {extends: b}}",
        "services: {a: {image: x, env_file: absent.env}}",
        "services: {a: {image: x, no_such_key: 1}}",
        "services: {a: {build: {dockerfile: Dockerfile, dockerfile_inline: FROM x}}}",
        "services: {a: {extends: b, build: {dockerfile: D}}, b: {build: {dockerfile_inline: F}}}",
        "services: {a: {image: x, mem_limit: much}}",
        "services: {a: {image: x, secrets: [s]}}",
    ],
)
def test_a_file_that_compose_refuses_is_refused(
    tmp_path: Path, client: dict[str, str], text: str
) -> None:
    root = write(tmp_path, {**TASK, "environment/docker-compose.yaml": text})
    command = ["docker", "compose", "config", "-q"]
    done = subprocess.run(
        command, cwd=root / "environment", env=client, capture_output=True, check=False
    )
    assert done.returncode != 0
    with pytest.raises(TaskError):
        lower(load_harbor_task(root))
