"""When a twin cannot tell, the tests run in the agent's own box."""

import asyncio
from dataclasses import replace

import pytest
from benchflow_adapters_harbor.grading import HARBOR
from benchflow_adapters_harbor.grading.reward_files import RewardFileNotFoundError
from benchflow_contracts import (
    ExecResult,
    ObservedFiles,
    ObservedProcess,
    OpenedFile,
    RewardError,
    VerifyResult,
)
from benchflow_reward import ScriptVerifier
from benchflow_reward.script.live_state import HOST_FILES, LiveState, changed_host_files

PREPARE = "/bin/sh -c set -eu\numask"
RUN = "/bin/sh -c for b in"
CLEAR = "/bin/sh -c set -eu\nfor p in"
LOOK = "/bin/sh -c for f in /etc/hosts"
SERVER = "python3\0server.py\0"
IDLE = ("sleep\0infinity\0", "sh\0-c\0sleep infinity\0")


def ok(stdout="", exit_code=0):
    return ExecResult(exit_code=exit_code, stdout=stdout, stderr="", duration_sec=0.1)


def look(*processes, memory="", hosts="127.0.0.1 localhost\n"):
    names = {**dict.fromkeys(HOST_FILES, ""), "/etc/hosts": hosts, "/etc/hostname": "sandbox\n"}
    files = "".join(f"\x1e{path}\n{text}" for path, text in names.items())
    lines = "".join(f"\x1d{n}\n{each}" for n, each in enumerate((*IDLE, *processes), 7))
    return ok(f"{files}\x1ememory\n{memory}\x1eprocesses\n{lines}\x1e")


@pytest.fixture
def score(provider, make_task, make_case):
    """Grade by Harbor's protocol. `twin` and `place` are what the tests write in each box."""

    def run(twin, place, state, isolation=None, earlier=(), solution=False, **verifier):
        config = {"isolation": "twin", "may_grade_in_place": True}
        node, evidence = make_case(task=make_task(verifier={**config, **verifier}))
        node.results.update(earlier)
        evidence = replace(evidence, plays_solution=solution)
        agents, ran = evidence.world.sandbox, []

        def test(call):
            in_place = call.sandbox is agents
            ran.append("place" if in_place else "twin")
            call.sandbox.files.put("/logs/verifier/test-stdout.txt", ran[-1])
            if (text := place if in_place else twin) is not None:
                call.sandbox.files.put("/logs/verifier/reward.txt", text)
            return ok()

        def prepare(call):
            call.sandbox.files.mkdir("/logs/verifier", parents=True)
            return ok()

        provider.on(PREPARE, prepare)
        provider.on(CLEAR, lambda call: ok())
        provider.on("/bin/sh -c set -u", lambda call: ok("\n"))
        provider.on(RUN, test)
        provider.on(LOOK, lambda call: state if call.sandbox is agents else look())
        return asyncio.run(
            ScriptVerifier(isolation=isolation, protocol=HARBOR).score(node, evidence)
        ), ran

    return run


RUNS = look(SERVER)


def test_a_twin_decides_where_nothing_runs(score):
    verdict, ran = score("0", "1", look())
    assert (verdict.reward, verdict.grading, ran) == (0, "twin", ["twin"])


def test_a_twin_that_gives_the_full_reward_decides_although_something_runs(score):
    verdict, ran = score("1", "0", RUNS)
    assert (verdict.reward, verdict.grading, ran) == (1, "twin", ["twin"])
    assert "it runs: python3 server.py" in verdict.meta["live"]


@pytest.mark.parametrize(
    ("twin", "said"), [("0", 0.0), ("0.5", 0.5), (None, "RewardFileNotFoundError"), ("2", 2.0)]
)
def test_the_tests_run_in_place_where_a_twin_gives_anything_else(score, twin, said, tmp_path):
    verdict, ran = score(twin, "1", RUNS)
    assert (verdict.reward, verdict.grading, ran) == (1, "shared", ["twin", "place"])
    assert verdict.meta["in_place"] == {"why": ["it runs: python3 server.py"], "twin": said}
    assert verdict.integrity == "suspicious"
    # What the tests left in the twin is beside what they left in place.
    logs = tmp_path / "verifier"
    found = [(logs / each / "test-stdout.txt").read_text() for each in ("twin", ".")]
    assert found == ["twin", "place"]


@pytest.mark.parametrize(
    "state",
    [
        look(memory="/dev/shm\n"),
        ok("no shell", exit_code=127),
        ok("\x1ea\x1eb\x1ec\x1ed\x1ee\x1e"),
        look(SERVER, SERVER),
    ],
)
def test_memory_and_unknown_values_are_reasons_too(score, state):
    verdict, ran = score("0", "1", state)
    assert (verdict.reward, ran) == (1, ["twin", "place"])
    assert verdict.meta["in_place"]["why"]


def test_the_verdict_in_place_holds_when_it_is_lower(score):
    verdict, _ = score("0.5", "0", RUNS)
    assert (verdict.reward, verdict.grading) == (0, "shared")


def test_tests_without_a_verdict_in_both_have_no_reward(score):
    with pytest.raises(RewardFileNotFoundError):
        score(None, None, RUNS)


@pytest.mark.parametrize("chosen", [{"isolation": "twin"}, {"may_grade_in_place": False}])
def test_only_the_twin_grades_if_the_operator_or_the_task_demands_it(score, chosen):
    verdict, ran = score("0", "1", RUNS, **chosen)
    assert (verdict.reward, verdict.grading, ran) == (0, "twin", ["twin"])


def test_nothing_of_the_agents_runs_beside_tests_that_reach_more(score):
    verdict, ran = score("0", "1", RUNS, network="public")
    assert (verdict.reward, ran) == (0, ["twin"])
    assert "reach more" in verdict.meta["not_in_place"]


def test_a_solution_that_only_a_grading_in_place_could_judge_has_no_score(score):
    with pytest.raises(RewardError, match=r"got 0\.0 in a twin.*python3 server\.py"):
        score("0", "1", RUNS, network="public", solution=True)


def test_a_solution_that_its_twin_gives_the_full_reward_keeps_that(score):
    verdict, _ = score("1", "1", RUNS, network="public", solution=True)
    assert verdict.reward == 1


def test_after_a_step_that_was_graded_in_place_the_next_one_is_too(score):
    earlier = {"reward": VerifyResult(reward=1, grading="shared")}
    verdict, ran = score("1", "1", look(), earlier=earlier)
    assert (verdict.grading, verdict.integrity, ran) == ("shared", "suspicious", ["place"])


@pytest.mark.parametrize(("parent", "grade"), [(0, "tampered"), (None, "suspicious")])
def test_a_process_of_the_agents_that_opens_the_graders_files_tampers(
    score, provider, parent, grade
):
    server = ObservedProcess(pid=9, parent=None, command=("python3", "server.py"))
    reader = ObservedProcess(pid=50, parent=parent, command=("cat", "/tests/test.sh"))
    opened = [OpenedFile("/tests/test.sh", 1), OpenedFile("/srv/page", 0)]
    provider.observed = ObservedFiles([server, reader], opened)
    verdict, _ = score("0", "1", RUNS)
    assert (verdict.reward, verdict.integrity) == (1, grade)


HOSTS = "127.0.0.1 localhost\n{}\tsandbox\n"


def test_a_copy_takes_over_names_and_keeps_its_own_address():
    live = LiveState(names={"/etc/hosts": HOSTS.format("172.17.0.2") + "10.0.0.1 shop\n"})
    copy = LiveState(names={"/etc/hosts": HOSTS.format("172.17.0.3"), "/etc/hostname": "sandbox\n"})
    wanted = "127.0.0.1 localhost\n10.0.0.1 shop\n172.17.0.3\tsandbox\n"
    assert changed_host_files(live, copy, same_network=True) == {"/etc/hosts": wanted}
    unchanged = replace(live, names={"/etc/hosts": HOSTS.format("172.17.0.9")})
    assert changed_host_files(unchanged, copy, same_network=True) == {}


def test_name_servers_are_those_of_the_copys_own_network():
    live = LiveState(names={"/etc/resolv.conf": "nameserver 10.0.0.1\n"})
    copy = LiveState(names={"/etc/resolv.conf": "nameserver 10.0.0.2\n"})
    assert list(changed_host_files(live, copy, same_network=True)) == ["/etc/resolv.conf"]
    assert changed_host_files(live, copy, same_network=False) == {}
