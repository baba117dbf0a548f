import pytest
from benchflow_contracts import (
    Role,
    UsageError,
)
from benchflow_kernel import RolloutConfig, Scene, Turn, lower_scenes


def test_the_usual_config_is_one_turn_with_the_instruction():
    (turn,) = lower_scenes(RolloutConfig.single("gemini", model="m"))
    assert (turn.scene, turn.role.agent, turn.role.model, turn.prompt) == (
        "main",
        "gemini",
        "m",
        None,
    )


def test_two_phases_with_two_roles_lower_to_turns_in_order():
    creator = Role(name="creator", agent="a", skills=("own",), timeout_sec=5)
    solver = Role(name="solver", agent="b")
    config = RolloutConfig(
        scenes=(
            Scene(
                name="create",
                roles=(creator, solver),
                turns=(Turn(role="creator", prompt="make"), Turn(role="solver")),
            ),
            Scene(
                name="solve",
                roles=(creator, solver),
                turns=(Turn(role="solver"), Turn(role="creator", prompt="check")),
                skills=("generated",),
            ),
        )
    )
    turns = lower_scenes(config)
    assert [(t.scene, t.role.name, t.prompt, t.role.skills) for t in turns] == [
        ("create", "creator", "make", ("own",)),
        ("create", "solver", None, ()),
        ("solve", "solver", None, ("generated",)),
        ("solve", "creator", "check", ("generated",)),
    ]
    assert turns[3].role.timeout_sec == 5
    assert turns[3].role.agent == "a"


def test_an_empty_skill_list_takes_the_roles_skills_away():
    role = Role(skills=("x",))
    (turn,) = lower_scenes(RolloutConfig(scenes=(Scene(roles=(role,), skills=()),)))
    assert turn.role.skills == ()


@pytest.mark.parametrize(
    ("scene", "says"),
    [
        (Scene(name="s", roles=(Role(name="a"),), turns=(Turn(role="b"),)), "'b'"),
        (Scene(name="s", roles=(Role(name="a"), Role(name="a"))), "'a' twice"),
        (Scene(name="s", roles=(Role(),), turns=()), "no turn"),
    ],
)
def test_a_scene_that_makes_no_sense_is_a_usage_error(scene, says):
    with pytest.raises(UsageError, match=says):
        lower_scenes(RolloutConfig(scenes=(scene,)))
