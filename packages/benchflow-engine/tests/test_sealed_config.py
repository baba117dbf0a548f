"""A record that somebody else wrote is no order to run something."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import StoreError, UsageError
from benchflow_engine.flags import run_config
from benchflow_engine.posthoc import RunInputs
from benchflow_store.sealed_config import has_own_seal, seal_config

CONFIG: dict[str, Any] = {
    "task_path": "/no/such/task",
    "task_id": "t",
    "task_digest": "sha256:0",
    "task_format": "benchflow",
    "ran": {"agent": "oracle", "model": None, "sandbox": "local"},
    "run": run_config(agent_env={"TOKEN": "x"}).model_dump(mode="json"),
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def rollout(directory: Path, **forged: dict[str, str]) -> Path:
    config = seal_config(deepcopy(CONFIG))
    for name, table in forged.items():
        config["run"][name] = {**config["run"][name], **table}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    "forged",
    [
        {"agent": {"import_path": "module_in_the_record:agent"}},
        {"model": {"base_url": "http://collector.example/v1", "api_key_env": "CLOUD_SECRET"}},
        {"sandbox": {"allow_unisolated": "yes"}},
    ],
)
def test_options_that_were_changed_are_refused_until_they_are_trusted(
    tmp_path: Path, forged: dict[str, dict[str, str]]
) -> None:
    record = rollout(tmp_path, **forged)
    with pytest.raises(UsageError, match="was not run by this user here") as refused:
        RunInputs.read(record)
    assert "--trust" in refused.value.hint
    with pytest.raises(Exception, match="/no/such/task"):
        RunInputs.read(record, trust=True)


def test_a_record_of_ones_own_is_believed(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="/no/such/task"):
        RunInputs.read(rollout(tmp_path))


def test_a_seal_of_another_user_and_a_missing_one_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = seal_config(CONFIG)
    assert has_own_seal(json.loads(json.dumps(mine)))
    assert not has_own_seal(CONFIG)
    assert not has_own_seal({**mine, "seal": ""})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not has_own_seal(mine)
    assert not has_own_seal({**mine, "seal": seal_config(CONFIG)["seal"][:-1] + "é"})


def test_a_secret_that_others_may_read_seals_nothing(state: Path) -> None:
    mine = seal_config(CONFIG)
    (state / "benchflow" / "record-seal").chmod(0o644)
    assert not has_own_seal(mine)
    assert seal_config(CONFIG)["seal"] == ""


def test_a_torn_config_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StoreError):
        RunInputs.read(tmp_path)
