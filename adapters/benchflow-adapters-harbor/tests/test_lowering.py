"""What a Harbor task becomes when it is run."""

from pathlib import Path

import pytest
from benchflow_adapters_harbor import HarborAdapter, load_harbor_task, lower
from benchflow_contracts import Artifact, ResourceLimits, Task, TaskError
from harbor_corpus import GOOD, task, write


def lowered(root: Path, files: dict[str, str]) -> Task:
    return lower(load_harbor_task(write(root / "a-task", files)))


def refusal(root: Path, files: dict[str, str]) -> TaskError:
    with pytest.raises(TaskError) as caught:
        HarborAdapter().load_task(write(root / "a-task", files))
    return caught.value


def test_a_task_without_settings_has_the_defaults_of_harbor(tmp_path: Path) -> None:
    found = lowered(tmp_path, GOOD["minimal"])
    box, verifier = found.config.environment, found.config.verifier
    assert (found.id, found.format, found.steps) == ("a-task", "harbor", ())
    assert (box.image, box.user, box.workdir, box.network) == (None, "", "", "public")
    assert box.keep_entrypoint
    assert box.limits() == ResourceLimits(pids=16384, disk_mb=None)
    assert (verifier.protocol, verifier.isolation, verifier.network) == ("harbor", "twin", "public")
    assert (verifier.timeout_sec, verifier.user, verifier.environment) == (600, "", None)
    assert found.config.artifacts == (Artifact(source="/logs/artifacts"),)
    assert found.config.agent.timeout_sec == 30 * 24 * 3600, "as good as without a limit"


def test_the_image_is_built_from_the_environment_or_has_a_name(tmp_path: Path) -> None:
    built = lowered(tmp_path / "1", task("[environment]\nbuild_timeout_sec = 7\n"))
    assert built.parts.recipe is not None
    assert built.parts.recipe.context == built.path / "environment"
    assert built.parts.recipe.timeout_sec == 7
    named = lowered(tmp_path / "2", GOOD["prebuilt"])
    assert (named.parts.recipe, named.config.environment.image) == (None, "debian:12")
    assert named.parts.workdir_files == named.path / "environment"
    assert named.config.environment.workdir == "/srv"


def test_the_parts_have_only_the_files_that_a_grader_sees(tmp_path: Path) -> None:
    found = lowered(tmp_path, {**task(), "solution/solve.sh": "true\n", "solution/data": "x"})
    assert found.parts.tests == (found.path / "tests",)
    assert found.parts.solution == found.path / "solution"
    assert found.parts.files is None


def test_variables_of_the_host_are_separated_from_values(tmp_path: Path) -> None:
    files = task("""
[environment]
env = { A = "1", B = "${HOST}", C = "${HOST:-x}", D = "pre-${HOST}", E = "$HOST" }
[verifier]
env = { V = "${HOST}" }
[solution]
env = { S = "${HOST:-}", DEBIAN_FRONTEND = "own" }
""")
    config = lowered(tmp_path, files).config
    assert config.environment.env == {"A": "1", "D": "pre-${HOST}", "E": "$HOST"}
    assert config.environment.host_env == {"B": "${HOST}", "C": "${HOST:-x}"}
    assert config.verifier.host_env == {"V": "${HOST}"}
    assert config.solution.env == {"DEBIAN_FRONTEND": "own"}
    assert config.solution.host_env == {"S": "${HOST:-}"}


def test_the_oracle_runs_apt_without_questions(tmp_path: Path) -> None:
    solution = lowered(tmp_path, task()).config.solution
    assert (solution.may_fail, solution.env) == (True, {"DEBIAN_FRONTEND": "noninteractive"})


def test_settings_that_the_agent_sees_are_lowered(tmp_path: Path) -> None:
    found = lowered(tmp_path, GOOD["agent-view"])
    box = found.config.environment
    assert found.parts.prior == found.path / "trajectory.json"
    assert (box.skills_dir, box.workdir, box.user) == ("/skills", "/work", "")
    assert found.config.agent.user == "1000"
    assert [(server.transport, server.url) for server in box.mcp_servers] == [
        ("sse", "http://localhost:1/sse"),
        ("http", "http://localhost:2/mcp"),
        ("stdio", None),
    ]
    assert box.healthcheck is not None
    assert (box.healthcheck.interval_sec, box.healthcheck.start_period_sec) == (1, 2)


def test_every_user_can_write_to_the_log_directories(tmp_path: Path) -> None:
    (setup,) = lowered(tmp_path, task()).config.environment.setup_commands
    assert setup.command == (
        "mkdir -p /logs/agent /logs/verifier /logs/artifacts"
        " && chmod 777 /logs/agent /logs/verifier /logs/artifacts"
    )
    assert setup.user == "root"


PHASES = """
[environment]
network_mode = "public"
[agent]
user = "alice"
network_mode = "no-network"
[verifier]
network_mode = "allowlist"
allowed_hosts = ["example.org"]
"""


def test_each_phase_has_its_own_network_and_user(tmp_path: Path) -> None:
    config = lowered(tmp_path, task(PHASES)).config
    box, agent, verifier = config.environment, config.agent, config.verifier
    assert (box.network, box.user) == ("public", "")
    assert (agent.network, agent.allowed_hosts, agent.user) == ("none", (), "alice")
    assert (verifier.network, verifier.allowed_hosts) == ("allowlist", ("example.org",))
    assert verifier.user == "", "tests of nobody's are run by the image's own user"


def test_each_step_has_its_own_network_and_user(tmp_path: Path) -> None:
    steps = """
[agent]
user = 1000
[[steps]]
name = "plan"
agent = { network_mode = "no-network" }
[[steps]]
name = "build"
agent = { user = "bob" }
verifier = { network_mode = "no-network" }
"""
    files = {**GOOD["two-steps"], "task.toml": steps}
    plan, build = lowered(tmp_path, files).steps
    assert (plan.agent.network, plan.agent.user) == ("none", "1000")
    assert (build.agent.network, build.agent.user) == ("public", "bob")
    assert (plan.verifier.network, build.verifier.network) == ("public", "none")


def test_a_verifier_of_its_own_is_hermetic(tmp_path: Path) -> None:
    baked = lowered(tmp_path / "1", GOOD["baked-verifier"])
    verifier = baked.config.verifier
    assert (verifier.isolation, verifier.tests_in_image) == ("hermetic", True)
    assert baked.parts.grading_recipe is not None
    assert baked.parts.grading_recipe.context == baked.path / "tests"
    named = lowered(tmp_path / "2", GOOD["image-verifier"])
    box = named.config.verifier.environment
    assert box is not None
    assert (box.image, box.network, box.cpus, box.user) == ("org/verifier:1", "none", 1, "")
    assert named.parts.grading_recipe is None
    assert named.config.verifier.network == "none"


def test_steps_have_their_own_tests_solutions_and_limits(tmp_path: Path) -> None:
    found = lowered(tmp_path, GOOD["two-steps"])
    plan, build = found.steps
    assert [step.instruction for step in found.steps] == ["Plan.\n", "Build.\n"]
    assert plan.parts.tests == (found.path / "tests",)
    assert build.parts.tests == (found.path / "tests", found.path / "steps/build/tests")
    assert plan.parts.solution == found.path / "steps/plan/solution"
    assert build.parts.solution == found.path / "solution"
    assert plan.parts.workdir_files == found.path / "steps/plan/workdir"
    [setup] = plan.setup_commands
    assert (setup.command, setup.user) == ("bash setup.sh", "")
    assert setup.timeout_sec == 30 * 24 * 3600  # Harbor sets it no limit
    assert (plan.min_reward, build.min_reward) == ({"reward": 0.5}, {"style": 0.25})
    assert (plan.verifier.user, build.verifier.user) == ("", "grader")
    assert [artifact.source for artifact in found.config.artifacts] == ["/logs/artifacts"]
    assert (plan.artifacts, build.artifacts) == ((), (Artifact(source="log.txt"),))
    assert found.config.step_reward == "mean"


@pytest.mark.parametrize(
    ("files", "where", "says"),
    [
        (
            task('artifacts = [{ source = "/x", service = "db" }]\n'),
            "artifacts.1",
            "no container 'db'",
        ),
        (
            task('[[verifier.collect]]\ncommand = "x"\nservice = "db"\n'),
            "verifier.collect.0",
            "no container 'db'",
        ),
        (task("[agent]\ntimeout_sec = 0\n"), "", "timeout_sec cannot be used"),
        (task('[environment]\ndocker_image = "/etc"\n'), "", "image cannot be used"),
    ],
)
def test_an_unsupported_setting_is_refused_by_its_key(
    tmp_path: Path, files: dict[str, str], where: str, says: str
) -> None:
    error = refusal(tmp_path, files)
    assert says in str(error)
    assert where in str(error)
    assert error.hint
    (listed,) = HarborAdapter().list_tasks(str(tmp_path))
    assert not listed.ok


def test_names_become_ones_that_our_tasks_may_have(tmp_path: Path) -> None:
    named = load_harbor_task(write(tmp_path / "t", task('[task]\nname = "Org/Some_Task.v2"\n')))
    assert lower(named).id == "org/some_task.v2"
    odd = load_harbor_task(write(tmp_path / "_Ünïx Task", task()))
    assert lower(odd).id == "n-x-task"


def test_a_script_of_tests_may_be_missing_where_the_image_brings_it(tmp_path: Path) -> None:
    found = lowered(tmp_path, GOOD["image-verifier"])
    assert found.parts.tests == ()
    assert found.config.verifier.tests_in_image
