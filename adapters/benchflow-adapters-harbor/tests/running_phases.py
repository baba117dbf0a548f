"""Agent, verifier, users, variables: what each phase of a task of one step sees."""

from harbor_corpus import ATIF
from running_case import IMAGE, Case, files, passes

ONE = {"reward": 1.0}

WITH_BUILDER = f"{IMAGE}RUN useradd -u 2001 builder\n"

PYTHON_TEST = """#!/usr/bin/python3
import os, pathlib
assert os.getcwd() == "/srv", os.getcwd()
assert pathlib.Path(__file__).parent == pathlib.Path("/tests")
# A login shell would have set the path anew.
assert os.environ["PATH"].startswith("/opt/bin:"), os.environ["PATH"]
pathlib.Path("/logs/verifier/reward.txt").write_text("1")
"""

BY_AGENT = """#!/bin/sh
if [ -e begun ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""

VARIABLES = """
[environment]
env = { ASKED = "${CORPUS_VARIABLE_THAT_NOBODY_SETS:-default}", PLAIN = "plain" }
[verifier]
env = { GRADER = "${CORPUS_VARIABLE_THAT_NOBODY_SETS:-key}" }
"""

PHASES = {
    "shebang-and-directory": Case(
        files(test=PYTHON_TEST, image=f"{IMAGE}ENV PATH=/opt/bin:/usr/bin:/bin\n"), ONE
    ),
    "agent-timeout": Case(
        files("touch begun\nsleep 100\n", BY_AGENT, "[agent]\ntimeout_sec = 5\n"),
        ONE,
        "AgentTimeoutError",
    ),
    "agent-fails": Case(files("touch begun\nexit 3\n", BY_AGENT), ONE, "NonZeroAgentExitCodeError"),
    "agent-does-nothing": Case(files("touch begun\n", BY_AGENT), {"reward": 0.0}, agent="nop"),
    "canary": Case(files("<!-- canary 1234 -->\n# canary again\n\n\ntouch begun\n", BY_AGENT), ONE),
    "tests-come-after-the-agent": Case(
        {
            **files(
                "find /tests -type f > seen\n",
                passes(
                    '[ "$(cat seen)" = /tests/of-the-image ]',
                    "grep -qx image /tests/of-the-image",
                    "grep -qx given /tests/data/given",
                ),
                image=f"{IMAGE}RUN mkdir /tests && echo image > /tests/of-the-image\n",
            ),
            "tests/data/given": "given\n",
        },
        ONE,
    ),
    "users-by-name-and-number": Case(
        files(
            "id -u > /tmp/agent; touch /logs/agent/mine /logs/artifacts/mine\n",
            passes("[ $(cat /tmp/agent) = 2001 ]", "[ $(id -u) = 2002 ]"),
            '[agent]\nuser = "builder"\n[verifier]\nuser = 2002\n',
            WITH_BUILDER,
        ),
        ONE,
    ),
    "the-image-s-user-says-whether-it-is-healthy": Case(
        files(
            "id -u > /tmp/agent\n",
            passes("[ $(cat /tmp/agent) = 2001 ]", "[ $(id -u) = 0 ]"),
            '[agent]\nuser = "builder"\n[environment.healthcheck]\nretries = 1\n'
            'command = "[ $(id -u) = 0 ]"\n',
            WITH_BUILDER,
        ),
        ONE,
    ),
    "user-of-the-image": Case(
        files(
            "id -u > /tmp/agent\n",
            passes("[ $(cat /tmp/agent) = 2001 ]", "[ $(id -u) = 2001 ]"),
            image=f"{WITH_BUILDER}USER builder\n",
        ),
        ONE,
    ),
    "variables": Case(
        files(
            'echo "$ASKED,$PLAIN,${GRADER-none}" > /tmp/agent\n',
            passes(
                "grep -qx default,plain,none /tmp/agent",
                '[ "$ASKED,$PLAIN,$GRADER" = default,plain,key ]',
            ),
            VARIABLES,
        ),
        ONE,
    ),
    "oracle": Case(
        {
            **files(
                test=passes(
                    "grep -qx noninteractive,key,/srv told",
                    "[ -e /solution/data ]",
                    "grep -qx said /logs/agent/oracle.txt",
                    "grep -qx warned /logs/agent/oracle.txt",
                ),
                toml='[solution]\nenv = { KEY = "key" }\n',
            ),
            "solution/data": "1\n",
            "solution/solve.sh": '#!/bin/sh\necho "$DEBIAN_FRONTEND,$KEY,$PWD" > told\n'
            "echo said; echo warned >&2\nexit 5\n",
        },
        ONE,
        agent="oracle",
    ),
    "solution-without-a-first-line": Case(
        {
            **files(test=passes("grep -qx two list")),
            "solution/solve.sh": "list=(one two)\necho ${list[1]} > list\n",
        },
        ONE,
        agent="oracle",
    ),
    "prior-context-is-refused-by-an-agent-that-cannot-load-it": Case(
        {**files("touch begun\n", BY_AGENT), "trajectory.json": ATIF}, None, "ValueError"
    ),
    "prior-context-is-not-for-the-oracle": Case(
        {
            **files(test=BY_AGENT),
            "trajectory.json": ATIF,
            "solution/solve.sh": "#!/bin/sh\ntouch begun\n",
        },
        ONE,
        agent="oracle",
    ),
}
