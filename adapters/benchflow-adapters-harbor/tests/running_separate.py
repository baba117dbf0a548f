"""A verifier in a container of its own: what reaches it, and what does not."""

from running_case import IMAGE, Case, files, passes

ONE = {"reward": 1.0}

DECLARED = """
artifacts = ["/srv/out.txt", { source = "/srv/tree", exclude = ["*.tmp"] }, "/srv/missing"]
[verifier]
environment_mode = "separate"
[environment]
env = { SHARED = "yes" }
"""

FORGES = """
echo out > out.txt
mkdir tree
touch tree/a tree/b.tmp other
echo hi > /logs/artifacts/note
echo '{"reward": 7}' > /logs/verifier/reward.json
"""

STATUSES = """
artifacts = [
    "/srv/bare",
    "/srv/logs",
    "/srv/logs/sub",
    "/srv/none.txt",
    "/srv/none",
    { source = "/srv/one", destination = "given/name" },
    { source = "/tmp/two", destination = "given/name" },
]
[verifier]
environment_mode = "separate"
"""

HOOKS = """
[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "exit 1"
[[verifier.collect]]
command = "cp /srv/state /logs/artifacts/state"
[[verifier.collect]]
command = "id -u > /logs/artifacts/who"
user = "builder"
"""

SEPARATE = {
    "artifacts-where-they-were": Case(
        files(
            FORGES,
            passes(
                "grep -qx out /srv/out.txt",
                "[ -e /srv/tree/a ] && [ ! -e /srv/tree/b.tmp ] && [ ! -e /srv/other ]",
                "grep -qx hi /logs/artifacts/note",
                "[ $SHARED = yes ]",
            ),
            DECLARED,
        ),
        ONE,
    ),
    "tests-in-the-verifier-s-image": Case(
        {
            **files(
                "echo out > out.txt\n",
                passes("[ $PWD = /grade ]", "grep -qx out /srv/out.txt", "[ ! -e /tests/data ]"),
                'artifacts = ["/srv/out.txt"]\n[verifier]\nenvironment_mode = "separate"\n',
            ),
            "tests/Dockerfile": f"{IMAGE}WORKDIR /grade\nCOPY test.sh /tests/test.sh\n",
            "tests/data": "not in the image\n",
        },
        ONE,
    ),
    "what-became-of-each-artifact": Case(
        files(
            "mkdir -p bare logs/sub && touch logs/sub/a && echo 1 > one && echo 2 > /tmp/two\n",
            passes("[ -e /srv/one ]", "[ -e /tmp/two ]", "[ -d /srv/bare ]"),
            STATUSES,
        ),
        ONE,
    ),
    "collected": Case(
        files(
            "echo 41 > state\n",
            passes("grep -qx 41 /logs/artifacts/state", "grep -qx 2001 /logs/artifacts/who"),
            HOOKS,
            f"{IMAGE}RUN useradd -u 2001 builder\n",
        ),
        ONE,
    ),
}
