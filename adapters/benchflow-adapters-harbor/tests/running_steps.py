"""Tasks of several steps: what is graded when, and what it adds up to."""

from running_case import IMAGE, Case, passes

ONE = {"reward": 1.0}
ZERO = {"reward": 0.0}

COUNTED = """#!/bin/sh
# The answer of step N is N lines of `work`.
[ "$(wc -l < work)" = "$(cat /tests/lines)" ]
echo $((1 - $?)) > /logs/verifier/reward.txt
"""


def steps(*given: tuple[str, str], toml: str = "") -> dict[str, str]:
    """Return a task with the steps `s1`, `s2`, ... of these scripts and keys."""
    files = {"environment/Dockerfile": IMAGE, "tests/test.sh": COUNTED}
    for number, (script, keys) in enumerate(given, 1):
        toml += f"[[steps]]\nname = 's{number}'\n{keys}"
        files[f"steps/s{number}/instruction.md"] = script
        files[f"steps/s{number}/tests/lines"] = f"{number}\n"
    return {"task.toml": toml, **files}


def leaves(json: str) -> str:
    return f"#!/bin/sh\necho '{json}' > /logs/verifier/reward.json\n"


BUILDER = """
agent = { user = "builder" }
healthcheck = { command = "[ $(id -u) = 2001 ]", retries = 1 }
"""

WORK = ("echo line >> work\n", "")
IDLE = ("true\n", "")

STEPS = {
    "mean-of-steps": Case(
        {
            **steps(WORK, WORK, WORK),
            "steps/s2/tests/test.sh": leaves('{"reward": 0.5, "style": 1}'),
            # An answer of the step before is not taken for this step's.
            "steps/s3/tests/test.sh": passes("[ ! -e /logs/verifier/reward.json ]"),
        },
        {"reward": 2.5 / 3, "style": 1 / 3},
        steps=((ONE, None), ({"reward": 0.5, "style": 1}, None), (ONE, None)),
    ),
    "last-step": Case(
        steps(
            IDLE,
            ("echo line > work; echo line >> work\n", ""),
            toml="multi_step_reward_strategy = 'final'\n",
        ),
        ONE,
        steps=((ZERO, None), (ONE, None)),
    ),
    "not-good-enough-to-go-on": Case(
        steps(WORK, ("true\n", "min_reward = 0.5\n"), WORK),
        {"reward": 0.5},
        steps=((ONE, None), (ZERO, None)),
    ),
    "a-key-that-is-missing-is-not-enough": Case(
        steps(("echo line > work\n", "min_reward = { style = 0.1 }\n"), WORK),
        ONE,
        steps=((ONE, None),),
    ),
    "prepared": Case(
        {
            **steps(("cat given made >> work\n", ""), WORK),
            "steps/s1/workdir/given": "line\n",
            "steps/s1/workdir/setup.sh": "cp given made && : > given\n",
        },
        ONE,
        steps=((ONE, None), (ONE, None)),
    ),
    "setup-fails": Case(
        {**steps(WORK, WORK), "steps/s1/workdir/setup.sh": "exit 4\n"},
        None,
        steps=((None, "RuntimeError"),),
    ),
    "agent-fails-in-a-step": Case(
        steps(("echo line >> work; exit 3\n", ""), WORK),
        ONE,
        steps=((ONE, "NonZeroAgentExitCodeError"), (ONE, None)),
    ),
    "agent-late-in-a-step": Case(
        steps(("echo line >> work; sleep 100\n", "agent = { timeout_sec = 5 }\n"), WORK),
        ONE,
        steps=((ONE, "AgentTimeoutError"), (ONE, None)),
    ),
    "no-reward-in-a-step": Case(
        {**steps(WORK, WORK), "steps/s1/tests/test.sh": "#!/bin/sh\ntrue\n"},
        None,
        steps=((None, "RewardFileNotFoundError"),),
    ),
    "no-reward-in-a-later-step": Case(
        {**steps(WORK, WORK, WORK), "steps/s2/tests/test.sh": "#!/bin/sh\ntrue\n"},
        ONE,
        steps=((ONE, None), (None, "RewardFileNotFoundError")),
    ),
    "no-keys-in-a-step": Case(
        {**steps(WORK, WORK, WORK), "steps/s2/tests/test.sh": leaves("{}")},
        {"reward": 2 / 3},
        steps=((ONE, None), ({}, None), (ONE, None)),
    ),
    "no-keys-in-any-step": Case(
        {
            **steps(WORK, ("true\n", "min_reward = 0\n"), WORK),
            "steps/s1/tests/test.sh": leaves("{}"),
            "steps/s2/tests/test.sh": leaves("{}"),
        },
        None,
        steps=(({}, None), ({}, None)),
    ),
    "setup-fails-later": Case(
        {**steps(WORK, WORK, WORK), "steps/s2/workdir/setup.sh": "exit 4\n"},
        ONE,
        steps=((ONE, None), (None, "RuntimeError")),
    ),
    "never-healthy-in-a-step": Case(
        steps((WORK[0], "healthcheck = { command = 'false', interval_sec = 0.1, retries = 2 }\n")),
        None,
        steps=((None, "HealthcheckError"),),
    ),
    "artifacts-of-each-step": Case(
        {
            **steps(
                ("echo line >> work; touch /logs/artifacts/one /logs/agent/one\n", ""),
                (
                    "ls /logs/* | grep one || echo line >> work; touch extra\n",
                    "artifacts = ['/srv/extra']\n",
                ),
                toml="artifacts = ['/srv/work']\n",
            ),
        },
        ONE,
        steps=((ONE, None), (ONE, None)),
    ),
    "a-user-for-each-step": Case(
        {
            **steps(("id -u > /tmp/s1\n", BUILDER), ("id -u > /tmp/s2\n", "")),
            "environment/Dockerfile": f"{IMAGE}RUN useradd -u 2001 builder\n",
            "steps/s1/workdir/setup.sh": "id -u > /tmp/setup\n",
            "steps/s1/tests/test.sh": passes(
                *("[ $(cat /tmp/s1) = 2001 ]", "[ $(cat /tmp/setup) = 2001 ]", "[ $(id -u) = 0 ]")
            ),
            "steps/s2/tests/test.sh": passes("[ $(cat /tmp/s2) = 0 ]"),
        },
        ONE,
        steps=((ONE, None), (ONE, None)),
    ),
    "tests-are-gone-again": Case(
        steps(WORK, ("find /tests -type f | grep . || echo line >> work\n", "")),
        ONE,
        steps=((ONE, None), (ONE, None)),
    ),
    "oracle-of-each-step": Case(
        {
            **steps(IDLE, IDLE),
            "solution/solve.sh": "#!/bin/sh\necho line >> work\n",
            "steps/s2/solution/solve.sh": "#!/bin/sh\nprintf '1\\n2\\n' > work\n",
        },
        ONE,
        steps=((ONE, None), (ONE, None)),
        agent="oracle",
    ),
}
