"""Tasks in Harbor's format, written for these tests: what each holds, by relative path.

A text that begins with `-> ` is a link to what follows.
"""

from pathlib import Path

TEST = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
DOCKERFILE = "FROM debian:12-slim\n"


def task(toml: str = "") -> dict[str, str]:
    """Return a whole task with this task.toml."""
    return {
        "task.toml": toml,
        "instruction.md": "Write hello.txt.\n",
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": TEST,
    }


def write(root: Path, files: dict[str, str]) -> Path:
    """Write a task's files below `root` and return it."""
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> "))
        else:
            path.write_text(text)
    return root


def without(files: dict[str, str], *names: str) -> dict[str, str]:
    return {name: text for name, text in files.items() if name not in names}


ATIF = """{"schema_version": "ATIF-v1.6", "session_id": "s", "agent": {"name": "a", "version": "1"},
"steps": [{"step_id": 1, "source": "user", "message": "hi"}]}"""

COMPOSE = """
x-check: &check
  interval: 5s
  retries: 3
services:
  main:
    depends_on:
      db: {condition: service_healthy}
    environment: [DB=db]
  db:
    image: postgres:16
    healthcheck:
      <<: *check
      test: [CMD, pg_isready]
    volumes: [data:/var/lib/postgresql, ./seed:/seed:ro]
volumes: {data: {}}
"""

STEPS = """
schema_version = "1.3"
multi_step_reward_strategy = "final"
artifacts = ["/app/out", { source = "/logs/artifacts", exclude = ["*.tmp"] }]
[agent]
timeout_sec = 90
user = "agent"
[verifier]
timeout_sec = 100
env = { A = "task", B = "task" }
[[steps]]
name = "plan"
min_reward = 0.5
[steps.agent]
timeout_sec = 30
user = 1001
network_mode = "no-network"
[steps.verifier]
env = { B = "step" }
[steps.healthcheck]
command = "true"
retries = 2
[[steps]]
name = "build it"
min_reward = { reward = 1, style = 0.25 }
artifacts = ["log.txt"]
[steps.verifier]
environment_mode = "separate"
timeout_sec = 7.5
[[steps.verifier.collect]]
command = "pg_dump > /tmp/dump"
service = "db"
"""

GOOD: dict[str, dict[str, str]] = {
    "minimal": task(),
    "legacy": task("""
version = "1.0"
[environment]
memory = "2G"
storage = "512M"
cpus = 2
allow_internet = false
"""),
    "package": {
        **task("""
schema_version = "1.1"
source = "somewhere"
[task]
name = "org/some-task.v2"
version = "2"
description = "d"
authors = [{ name = "A", email = "a@example.org" }, { name = "B" }]
keywords = ["k"]
[metadata]
difficulty = "easy"
nested = { list = [1, 2.5, true] }
"""),
        "README.md": "read me\n",
        "tests/__pycache__/x.pyc": "left out of the digest",
        "tests/data~": "left out too",
    },
    "prebuilt": {
        **without(
            task('[environment]\ndocker_image = "debian:12"\nworkdir = "/srv"\n'),
            "environment/Dockerfile",
        ),
        "environment/input/data.txt": "1\n",
    },
    "compose": {
        **task("""
artifacts = [{ source = "/var/log/db", service = "db", destination = "logs/db" }]
[[verifier.collect]]
command = "true"
[[verifier.collect]]
command = "pg_dumpall > /var/log/db/dump.sql"
service = "db"
timeout_sec = 5
user = "postgres"
"""),
        "environment/docker-compose.yaml": COMPOSE,
        "environment/seed/a.sql": "select 1;\n",
    },
    "baked-verifier": {
        **task('[verifier]\nenvironment_mode = "separate"\n[environment]\nmemory_mb = 100\n'),
        "tests/Dockerfile": DOCKERFILE,
    },
    "image-verifier": {
        **without(
            task("""
[verifier]
env = { KEY = "${SOME_KEY:-none}" }
[verifier.environment]
docker_image = "org/verifier:1"
allow_internet = false
cpus = 1
"""),
            "tests/test.sh",
        ),
    },
    "inherited-verifier": task("""
[verifier]
environment_mode = "separate"
user = "nobody"
network_mode = "no-network"
[environment]
docker_image = "debian:12"
network_mode = "public"
"""),
    "steps": {
        "task.toml": STEPS,
        "environment/Dockerfile": DOCKERFILE,
        "environment/docker-compose.yaml": COMPOSE,
        "tests/test.sh": TEST,
        "tests/common.py": "X = 1\n",
        "solution/solve.sh": "true\n",
        "steps/plan/instruction.md": "# canary 1234\n\nPlan.\n",
        "steps/plan/trajectory.json": ATIF,
        "steps/plan/workdir/setup.sh": "true\n",
        "steps/plan/solution/solve.sh": "true\n",
        "steps/build it/instruction.md": "Build.\n",
        "steps/build it/tests/test.sh": TEST,
    },
    "two-steps": {
        "task.toml": """
[[steps]]
name = "plan"
min_reward = 0.5
[[steps]]
name = "build"
min_reward = { style = 0.25 }
artifacts = ["log.txt"]
[steps.verifier]
user = "grader"
""",
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": TEST,
        "solution/solve.sh": "true\n",
        "steps/plan/instruction.md": "Plan.\n",
        "steps/plan/workdir/setup.sh": "true\n",
        "steps/plan/solution/solve.sh": "true\n",
        "steps/build/instruction.md": "Build.\n",
        "steps/build/tests/test.sh": TEST,
    },
    "network": task("""
[environment]
network_mode = "allowlist"
allowed_hosts = ["Example.ORG.", "*.example.com", "192.0.2.1", "192.0.2.0/24", "2001:DB8::1",
  "2001:db8::/32"]
[agent]
network_mode = "allowlist"
allowed_hosts = ["api.example.com"]
[verifier]
network_mode = "public"
"""),
    "agent-view": {
        **task("""
[agent]
timeout_sec = 12.5
user = 1000
[environment]
skills_dir = "/skills"
workdir = "/work"
env = { TOKEN = "${TOKEN}", PLAIN = "x" }
[environment.healthcheck]
command = "curl -f localhost"
interval_sec = 1
start_period_sec = 2
[[environment.mcp_servers]]
name = "a"
url = "http://localhost:1/sse"
[[environment.mcp_servers]]
name = "b"
transport = "http"
url = "http://localhost:2/mcp"
[[environment.mcp_servers]]
name = "c"
transport = "stdio"
command = "server"
args = ["--x"]
[solution]
env = { KEY = "${KEY:-}" }
"""),
        "trajectory.json": ATIF,
        "solution/solve.sh": "true\n",
        "instruction.md": "<!-- CANARY guid -->\n# canary again\n\n\nDo it.\r\n\r\nWell.\n",
    },
    "accelerators": task("""
[environment]
gpus = 2
gpu_types = ["H100"]
tpu = { type = "v6e", topology = "2x4" }
"""),
    "windows": {
        **without(task('[environment]\nos = "Windows"\n'), "tests/test.sh"),
        "tests/test.bat": "exit 0\r\n",
    },
    "odd-keys": task("""
future = 1
[environment]
allow_internet = true
network_mode = "no-network"
cpu = 4
[agent]
timout_sec = 3
"""),
    "linked": {
        **task(),
        "tests/shared.sh": "-> ../environment/shared.sh",
        "environment/shared.sh": "true\n",
        "solution": "-> tests",
    },
    "ignoring": {
        **task(),
        ".gitignore": "*.log\nout/\n!keep.log\n",
        "environment/a.log": "x",
        "environment/keep.log": "y",
        "tests/out/z": "z",
    },
    "loose-types": task("""
artifacts = [{ source = "a", destination = "" }]
[agent]
timeout_sec = "5"
[environment]
cpus = 2.0
memory_mb = "64"
[verifier]
timeout_sec = true
"""),
}
"""Tasks that Harbor 0.24 takes."""


def _steps(names: list[str], extra: str = "") -> dict[str, str]:
    toml = extra + "".join(f"[[steps]]\nname = '{name}'\n" for name in names)
    files = {"task.toml": toml, "environment/Dockerfile": DOCKERFILE, "tests/test.sh": TEST}
    return files | {f"steps/{name}/instruction.md": "Do.\n" for name in names if "/" not in name}


BAD: dict[str, dict[str, str]] = {
    "no-toml": task("[agent\n"),
    "wrong-type": task('[agent]\ntimeout_sec = "soon"\n'),
    "half-a-cpu": task("[environment]\ncpus = 1.5\n"),
    "number-in-env": task("[environment]\nenv = { A = 1 }\n"),
    "table-as-user": task("[agent]\nuser = {}\n"),
    "plain-name": task('[task]\nname = "no-org"\n'),
    "climbing-name": task('[task]\nname = "org/a..b"\n'),
    "empty-version": task('[task]\nname = "o/n"\nversion = ""\n'),
    "float-version": task("version = 1.0\n"),
    "no-instruction": without(task(), "instruction.md"),
    "no-test": without(task(), "tests/test.sh"),
    "no-environment": without(task(), "environment/Dockerfile"),
    "bat-on-linux": {**without(task(), "tests/test.sh"), "tests/test.bat": "x"},
    "shared-with-container": task(
        '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\n'
    ),
    "unknown-mode": task('[environment]\nnetwork_mode = "some"\n'),
    "hosts-without-mode": task('[environment]\nallowed_hosts = ["a.org"]\n'),
    "phase-hosts-without-mode": task("[agent]\nallowed_hosts = []\n"),
    "host-is-url": task(
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["https://a.org"]\n'
    ),
    "host-has-port": task(
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org:80"]\n'
    ),
    "star-inside": task('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.*.org"]\n'),
    "star-address": task(
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["*.192.0.2.1"]\n'
    ),
    "host-bits": task(
        '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["192.0.2.1/24"]\n'
    ),
    "no-host": task('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = [" "]\n'),
    "memory-twice": task('[environment]\nmemory = "1G"\nmemory_mb = 1000\n'),
    "memory-unit": task('[environment]\nmemory = "1T"\n'),
    "tpu-topology": task('[environment]\ntpu = { type = "v4", topology = "0x2" }\n'),
    "unknown-os": task('[environment]\nos = "plan9"\n'),
    "artifact-up": task('artifacts = ["/a/../b"]\n'),
    "artifact-absolute": task('artifacts = [{ source = "a", destination = "/b" }]\n'),
    "artifact-backslash": task("artifacts = [{ source = 'a', destination = 'b\\c' }]\n"),
    "artifact-manifest": task('artifacts = [{ source = "a", destination = "manifest.json" }]\n'),
    "artifact-sidecar": task('artifacts = [{ source = "a", service = "db" }]\n'),
    "artifact-service": task('artifacts = [{ source = "/a", service = "-db" }]\n'),
    "hook-service": task('[[verifier.collect]]\ncommand = "x"\nservice = ""\n'),
    "hook-command": task("[[verifier.collect]]\n"),
    "mcp-url": task('[[environment.mcp_servers]]\nname = "a"\n'),
    "mcp-command": task('[[environment.mcp_servers]]\nname = "a"\ntransport = "stdio"\n'),
    "mcp-transport": task(
        '[[environment.mcp_servers]]\nname = "a"\ntransport = "pipe"\nurl = "x"\n'
    ),
    "step-twice": _steps(["One", "one"]),
    "step-device": _steps(["nul.txt"]),
    "step-path": _steps(["a/b"]),
    "step-dots": _steps([".."]),
    "step-missing": without(_steps(["one"]), "steps/one/instruction.md"),
    "step-strategy": _steps(["one"], 'multi_step_reward_strategy = "max"\n'),
    "step-untested": without(_steps(["one"]), "tests/test.sh"),
    "link-out": {**task(), "tests/passwd": "-> /etc/passwd"},
    "solution-out": {**task(), "solution": "-> .."},
    "link-circle": {**task(), "tests/again": "-> ."},
    "step-link-out": {**_steps(["one"]), "steps/one/data": "-> ../../.."},
}
"""Tasks that Harbor 0.24 refuses."""

TERMINAL_BENCH: dict[str, str] = {
    "task.yaml": """
# BENCHMARK DATA. canary
instruction: |-
  Make it work.
  Twice.
author_name: A
difficulty: hard
category: system
tags: [a, b]
parser_name: pytest
max_agent_timeout_sec: 900
max_test_timeout_sec: 180.5
run_tests_in_same_shell: true
expert_time_estimate_min: 60
unknown: 1
""",
    "Dockerfile": DOCKERFILE,
    "docker-compose.yaml": """
services:
  client:
    build: {dockerfile: Dockerfile}
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [sh, -c, sleep infinity]
    environment: ["TEST_DIR=${T_BENCH_TEST_DIR}"]
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}
""",
    "run-tests.sh": "pytest $TEST_DIR/test_outputs.py\n",
    "solution.sh": "true\n",
    "tests/test_outputs.py": "def test(): pass\n",
}
