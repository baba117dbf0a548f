"""Every cheat that is shipped, by an agent that is root, in each design and on both sandboxes."""

import asyncio

import pytest
from benchflow_adapters_harbor import HarborAdapter
from benchflow_engine.rollout import run_in
from benchflow_kernel import load_task
from benchflow_reward.cheats import cheats
from benchflow_sandbox_docker import DockerProvider
from cheated import (
    FILES,
    HARBORS,
    IMPATIENT,
    SEPARATE,
    SIDECAR,
    STEPPED,
    options,
    paid,
    slow,
    tried,
    write,
)

IN_A_TWIN = {"answers-linked", "stdlib-patched", "usercustomize"}
"""They work there, and are seen."""
IN_NONE = {"reward-daemon", "tests-raced", "tests-watched"}
"""They need a process of the agent's beside the tests."""
BY_PROTOCOL = {
    *IN_A_TWIN | IN_NONE,
    *("answers-piped", "bytecode-forged", "conftest", "home-shims", "logs-linked"),
    *("modules-shadowed", "reward-json-planted", "reward-linked", "reward-locked"),
    *("shell-start-up", "tests-linked", "tests-planted", "tests-read"),
}
"""They aim at what Harbor's protocol does in another way than ours: variables, directories of the
grader's, artifacts, the order of reward files."""
DESIGNS = ["hermetic", "twin", "shared"]
GRADES = {"hermetic": None, "twin": "clean", "shared": "suspicious"}
"""What the honest get."""


@pytest.fixture
def task(tmp_path):
    return load_task(write(tmp_path / "sum", FILES))


@pytest.fixture
def harbors(tmp_path, image):
    def load(files):
        return HarborAdapter().load_task(write(tmp_path / "sum", files, image))

    return load


def chosen_for(provider, names, full="local"):
    """Return all cheats for one of the sandboxes, and for the other one those of the names.

    The local sandbox is quick, and runs all of them in each design. Docker runs all of them once,
    in the design that Harbor's tasks have: their tests in a twin.
    """
    return [c for c in cheats() if provider.name == full or c.name in names]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_cheat_gets_a_reward_in_hermetic_grading(provider, task):
    assert paid(tried(provider, task, "hermetic", chosen_for(provider, BY_PROTOCOL))) == {}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_cheat_gets_a_reward_of_a_separate_verifier_of_harbors(provider, harbors):
    assert (
        paid(tried(provider, harbors(SEPARATE), "hermetic", chosen_for(provider, BY_PROTOCOL)))
        == {}
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cheat_that_gets_a_reward_in_a_twin_has_tampered_with_it(provider, task):
    found = paid(tried(provider, task, "twin", chosen_for(provider, IN_A_TWIN | IN_NONE)))
    # Root owns what a twin is made of, so some of them work; none of them unseen.
    assert set(found.values()) == {"tampered"}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cheat_that_gets_a_reward_of_harbors_tests_has_tampered_with_it(provider, harbors):
    chosen = chosen_for(provider, BY_PROTOCOL, full="docker")
    found = paid(tried(provider, harbors(HARBORS), "twin", chosen))
    assert set(found.values()) == {"tampered"}


@pytest.mark.slow
@pytest.mark.timeout(590)
def test_a_cheat_that_gets_the_reward_of_several_steps_has_tampered_with_it(provider, harbors):
    chosen = [c for c in cheats() if c.name in BY_PROTOCOL - {"answers-piped"}]
    found = paid(tried(provider, harbors(STEPPED), "twin", chosen))
    assert found.keys() >= IN_A_TWIN
    assert set(found.values()) == {"tampered"}


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_tests_of_steps_that_wait_for_a_pipe_of_the_agents_are_ended(provider, harbors):
    chosen = [cheat for cheat in cheats() if cheat.name == "answers-piped"]
    [one] = tried(provider, harbors(IMPATIENT), "twin", chosen).values()
    # The agent left the pipe, and without it the tests end: it earns nothing by that.
    assert (one.verdict, one.reward) == ("stopped", 0)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_beside_services_a_twin_sees_the_same(tmp_path, image, harbors):
    task = harbors({**HARBORS, "environment/docker-compose.yaml": SIDECAR})
    provider = DockerProvider(image=image, store=tmp_path / "store")
    chosen = [cheat for cheat in cheats() if cheat.name in IN_A_TWIN | IN_NONE]
    found = tried(provider, task, "twin", chosen)
    assert paid(found) == dict.fromkeys(IN_A_TWIN, "tampered")


def hold_to_shared(found):
    seen = {name: (one.verdict, one.integrity, one.error) for name, one in found.items()}
    earned = {name for name, one in found.items() if one.verdict in {"won", "flagged"}}
    assert {"answers-piped", "tests-read", "stdlib-patched", "answers-linked"} <= earned, seen
    # A process of the agent's that opens the tests is seen.
    named = ("tests-read", "stdlib-patched", "answers-linked")
    assert {name: seen[name] for name in named if seen[name][0] != "flagged"} == {}
    assert {one.integrity for one in found.values() if one.reward} == {"suspicious", "tampered"}
    assert "clean" not in {one.integrity for one in found.values()}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_cheats_are_real_in_shared_grading_and_no_verdict_is_clean(provider, tmp_path):
    task = load_task(write(tmp_path / "sum", slow(FILES)))
    hold_to_shared(tried(provider, task, "shared", chosen_for(provider, BY_PROTOCOL)))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_verdict_of_harbors_tests_beside_the_agent_is_clean(provider, harbors):
    # The tests above have tried the others beside our tests.
    chosen = [cheat for cheat in cheats() if cheat.name in BY_PROTOCOL]
    hold_to_shared(tried(provider, harbors(slow(HARBORS)), "shared", chosen))


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("form", ["ours", "harbor"])
def test_the_honest_get_what_they_earned(provider, task, harbors, design, form):
    if form == "harbor":
        task = harbors(SEPARATE if design == "hermetic" else HARBORS)

    async def main():
        async with provider:
            for agent, earned in (("oracle", 1), ("nop", 0)):
                result = await run_in(provider, task, options(provider, design, agent))
                verdict = result.tree.leaves[0].results["reward"]
                assert result.reward == earned, verdict
                assert verdict.integrity == GRADES[design], verdict.meta

    asyncio.run(main())


def test_there_are_cheats_of_every_kind_and_each_says_what_it_is():
    assert len(cheats()) >= 25
    assert all(cheat.attempt and cheat.stopped for cheat in cheats())
