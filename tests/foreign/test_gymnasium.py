"""Gymnasium's own package plays our tasks, and its environments are worlds of our rollouts."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchflow_store import StoredRollout
from foreign_program import run_beside_workspace
from judge_package import install_once

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(300)]

GYMNASIUM = "gymnasium[classic-control,toy-text]==1.4.0"
PROGRAMS = Path(__file__).parents[1] / "support/gymnasium_programs"


def _run(program: str, cwd: Path, *args: object) -> Any:
    return run_beside_workspace(install_once(GYMNASIUM), PROGRAMS / program, *args, cwd=cwd)


def _play(cwd: Path, name: str, seed: int, actions: list[Any], **options: Any) -> Any:
    values = (name, seed, json.dumps(options), json.dumps(actions), cwd / "jobs")
    return _run("play_world.py", cwd, *values)


def test_gymnasium_plays_our_tasks_in_every_way(tmp_path: Path) -> None:
    played = _run("play_task.py", tmp_path)
    one = played["one"]
    assert "hello, world" in one["prompt"]
    assert one["tools"] == ["bash", "read_file", "write_file", "submit"]
    assert [step[1:4] for step in one["steps"]] == [[0.0, False, False]] * 3
    assert [step[4]["is_error"] for step in one["steps"]] == [True, True, False]
    assert "echo hello, world" in one["shown"]
    assert one["last"][1:4] == [1.0, True, False]
    assert one["last"][4]["scored"] is True
    assert one["after"] in {"SessionEndedError", "ResetNeeded"}
    record = StoredRollout(tmp_path / "jobs" / one["rollout"]).record
    assert record is not None
    assert (record.agent, record.reward) == ("tool-session", 1.0)
    assert played["limit"][1:4] == [1.0, False, True]
    assert "2 calls" in played["limit"][4]["ended_early"]
    assert "no reward" in played["unscored"]["error"]
    reward, terminated, truncated, scored, why = played["unscored"]["ending"]
    assert (reward, scored) == ("nan", False)
    assert terminated or truncated
    assert why
    assert [w for w in played["warnings"] if "render" not in w] == []
    assert played["three"] == [3, [1.0, 0.0, 1.0], [True] * 3, [False] * 3]
    assert played["processes"] == [2, [1.0, 0.0], [True] * 2, [False] * 2]
    assert played["forked"] == [[0.0, True, False], [1.0, True, False]]
    assert played["guide"] == [1.0, [1.0, 0.0]]
    chosen = played["chosen"]
    assert chosen[:4] == chosen[4:8]
    assert (set(chosen[:4]), chosen[8]) == ({"task", "other"}, "other")


def test_the_world_of_an_environment_keeps_every_promise(tmp_path: Path) -> None:
    assert _run("kit.py", tmp_path, "CartPole-v1") == []


def test_frozen_lake_is_a_world_that_two_children_replay(tmp_path: Path) -> None:
    played = _play(tmp_path, "FrozenLake-v1", 1, [1, 1, 2, 2, 1, 2], kwargs={"is_slippery": False})
    assert played["status"] == "completed"
    assert "Discrete(4)" in played["prompt"]
    first, second = played["leaves"]
    assert (first["reward"], second["reward"]) == (1.0, 1.0)
    assert first["texts"] == second["texts"]
    assert first["texts"][-1].endswith("The episode has ended: terminated.")
    values = [value for value, _ in first["events"]]
    assert values[:6] == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_cart_pole_keeps_truncated_and_terminated_apart(tmp_path: Path) -> None:
    played = _play(tmp_path, "CartPole-v1", 7, [0, 1, 0, "left", 5, 1], max_episode_steps=4)
    first, second = played["leaves"]
    assert (first["reward"], second["reward"]) == (4.0, 4.0)
    assert first["texts"] == second["texts"]
    assert "not in Discrete(2)" in first["texts"][3]
    assert first["texts"][5].endswith("The episode has ended: truncated.")


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1"])
def test_the_copies_of_a_vector_are_one_episode(tmp_path: Path, name: str) -> None:
    # CartPole has a vector of its own; Gymnasium makes one of FrozenLake's copies.
    moves: list[Any] = [[0, 1], [1], *([[n % 2, 1 - n % 2] for n in range(9)])]
    played = _play(tmp_path, name, 3, moves, num_envs=2, max_episode_steps=5)
    assert "2 copies" in played["prompt"]
    first, second = played["leaves"]
    assert first["texts"] == second["texts"]
    assert "not in MultiDiscrete" in first["texts"][1]
    values = [value for value, _ in first["events"]]
    assert first["reward"] == second["reward"]
    if name == "CartPole-v1":
        assert first["reward"] == 10.0
        assert values[:5] == [2.0] * 5
        assert first["texts"][5].endswith("The episode has ended: truncated.")
    else:
        assert "The episode has ended" in " ".join(first["texts"])


def test_one_seed_is_one_game_of_blackjack(tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("a", "b")]
    for home in homes:
        home.mkdir()
    games = [_play(home, "Blackjack-v1", 5, [0]) for home in homes]
    assert games[0]["prompt"] == games[1]["prompt"]
    leaf = games[0]["leaves"][0]
    assert leaf["reward"] in {-1.0, 0.0, 1.0, 1.5}
    assert games[0]["leaves"][0]["texts"] == games[1]["leaves"][0]["texts"]
