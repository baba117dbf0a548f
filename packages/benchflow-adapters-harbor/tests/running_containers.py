"""Images, entry points, health, services: the containers that a task asks for."""

from running_case import BASE, IMAGE, Case, files, passes
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
            image=f"{IMAGE}RUN sleep 30\n",
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
}
