"""Images, entry points, health, services: the containers that a task asks for."""

from running_case import BASE, IMAGE, ONCE, Case, files, passes
from running_phases import VARIABLES

ONE = {"reward": 1.0}

ENTRY = """#!/bin/sh
echo "$PWD $ASKED ${GRADER-none} $*" > /entry.args
(sleep 1; touch /ready) &
exec "$@"
"""
ENTERED = f"""{IMAGE}COPY entry.sh /entry.sh
RUN chmod +x /entry.sh
ENTRYPOINT ["/entry.sh"]
"""

HEALTH = """
[environment.healthcheck]
command = "test -e /ready"
start_period_sec = 60
start_interval_sec = 0.2
retries = 1
"""

SERVED = f"""{IMAGE}RUN mkdir /served && echo hello > /served/page
CMD ["python3", "-m", "http.server", "-d", "/served", "8000"]
"""
COMPOSE = """
services:
  main:
    depends_on:
      web: {condition: service_healthy}
    environment: [WHERE=http://web:8000/page]
  web:
    build: ./web
    healthcheck:
      test: [CMD, python3, -c, "import urllib.request as u; u.urlopen('http://localhost:8000')"]
      interval: 200ms
      timeout: 5s
      retries: 50
"""
FETCH = """python3 -c "
import os, urllib.request
print(urllib.request.urlopen(os.environ['WHERE']).read().decode())
" > page
"""

EVIDENCE = """
artifacts = [
    { source = "/served/page", service = "web" },
    { source = "/evidence", service = "web" },
]
[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "mkdir /evidence; echo web > /evidence/who"
service = "web"
"""

# Of what compose files may say: what a test can see of it from the main container.
FEATURES = """
x-idle: &idle [sleep, infinity]
services:
  main:
    command: [sh, -c, "echo commanded > /commanded; sleep infinity"]
    hostname: desk
    shm_size: 16m
    env_file: main.env
    environment: [WHERE=http://shop:8000/page]
    depends_on:
      web: {condition: service_healthy}
      seed: {condition: service_completed_successfully}
      never: {condition: service_started, required: false}
    networks: [front]
    volumes: ["data:/data", "./given:/given:ro"]
    secrets: [token]
  web:
    extends: {file: web/common.yaml, service: page}
    networks: {front: {aliases: [shop]}, back: }
  hidden: {build: {context: web, target: served}, command: *idle, networks: [back]}
  seed:
    extends: hidden
    command: [sh, -c, 'test -s /run/secrets/other && echo seeded > /data/seed']
    secrets: [{source: token, target: other}]
    volumes: ["data:/data"]
  never: {image: "there/is:none", profiles: [never]}
networks: {front: , back: {internal: true}}
volumes: {data: }
secrets: {token: {file: ./given/token}}
"""
COMMON = """
services:
  page:
    build: {context: ., target: served, args: {WORD: hello}}
    healthcheck:
      test: [CMD, python3, -c, "import urllib.request as u; u.urlopen('http://localhost:8000')"]
      interval: 200ms
      timeout: 5s
      retries: 50
"""
STAGED = f"""{IMAGE.replace("FROM " + BASE, f"FROM {BASE} AS served")}ARG WORD=none
RUN mkdir /served && echo $WORD > /served/page
CMD ["python3", "-m", "http.server", "-d", "/served", "8000"]
FROM served
RUN false
"""
KNOCK = "python3 -c \"import socket; socket.gethostbyname('{}')\" 2> /dev/null"

CONTAINERS = {
    "entrypoint-is-kept": Case(
        {
            **files(
                test=passes("grep -qx '/srv default none sh -c sleep infinity' /entry.args"),
                toml=VARIABLES,
                image=ENTERED,
            ),
            "environment/entry.sh": ENTRY,
        },
        ONE,
    ),
    "workdir": Case(
        files(
            "pwd > where\n",
            passes("[ $PWD = /opt/place ]", "grep -qx /opt/place where"),
            '[environment]\nworkdir = "/opt/place"\n',
            f"{IMAGE}RUN mkdir -p /opt/place\n",
        ),
        ONE,
    ),
    "healthy-after-a-while": Case(
        {**files("test -e /ready\n", passes(), HEALTH, ENTERED), "environment/entry.sh": ENTRY},
        ONE,
    ),
    "never-healthy": Case(
        files(
            test=passes(),
            toml="[environment.healthcheck]\ncommand = 'false'\ninterval_sec = 0.1\nretries = 2\n",
        ),
        None,
        "HealthcheckError",
    ),
    "build-fails": Case(files(test=passes(), image=f"{IMAGE}RUN false\n"), None, "RuntimeError"),
    "build-takes-too-long": Case(
        files(
            test=passes(),
            toml="[environment]\nbuild_timeout_sec = 2\n",
            image=f"{IMAGE}RUN sleep 30 # {ONCE}\n",
        ),
        None,
        "EnvironmentStartTimeoutError",
    ),
    "prebuilt-with-files": Case(
        {
            "task.toml": f'[environment]\ndocker_image = "{BASE}"\nworkdir = "/opt"\n',
            "instruction.md": "cp data/number copied\n",
            "tests/test.sh": passes("grep -qx 41 data/number", "grep -qx 41 copied"),
            "environment/data/number": "41\n",
        },
        ONE,
    ),
    "old-fields": Case(
        files(
            test=passes(
                "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max"
                " 2> /dev/null | grep -qx 268435456"
            ),
            toml='version = "1.0"\n[environment]\nmemory = "256M"\n',
        ),
        ONE,
    ),
    "sidecar": Case(
        {
            **files(FETCH, passes("grep -qx hello page")),
            "environment/docker-compose.yaml": COMPOSE,
            "environment/web/Dockerfile": SERVED,
        },
        ONE,
    ),
    "evidence-of-a-sidecar": Case(
        {
            **files(
                FETCH, passes("grep -qx hello /served/page", "grep -qx web /evidence/who"), EVIDENCE
            ),
            "environment/docker-compose.yaml": COMPOSE,
            "environment/web/Dockerfile": SERVED,
            "tests/Dockerfile": f"{IMAGE}COPY . /tests\n",
        },
        ONE,
    ),
    "features-of-compose": Case(
        {
            **files(
                FETCH,
                passes(
                    "grep -qx hello page",
                    "grep -qx commanded /commanded",
                    "grep -qx seeded /data/seed",
                    "grep -qx 41 /given/token",
                    "grep -qx 41 /run/secrets/token",
                    '[ "$(hostname)" = desk ]',
                    '[ "$FROM_FILE" = "two words" ]',
                    "grep -q '/dev/shm .*size=16384k' /proc/mounts",
                    KNOCK.format("web"),
                    f"! {KNOCK.format('hidden')}",
                ),
            ),
            "environment/docker-compose.yaml": FEATURES,
            "environment/main.env": "FROM_FILE='two words' # and more\n",
            "environment/given/token": "41\n",
            "environment/web/common.yaml": COMMON,
            "environment/web/Dockerfile": STAGED,
        },
        ONE,
    ),
}
