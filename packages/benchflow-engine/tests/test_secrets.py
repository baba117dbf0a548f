"""Which words of an operator are secret."""

import pytest
from benchflow_contracts import UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.flags import run_config
from benchflow_engine.secrets import recorded_config, secrets_of, with_secrets


def test_values_keys_and_forwarded_variables_are_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED", "forwarded-value")
    monkeypatch.setenv("MY_KEY", "sk-0123456789")
    env = {"TOKEN": "tok-123456", "BENCHFLOW_ASK": "111111111", "HOME": "/home/agent", "ON": "true"}
    options = run_config(agent_env=env, forward_env=("FORWARDED",), api_key_env="MY_KEY")
    assert secrets_of(options) == {"tok-123456", "forwarded-value", "sk-0123456789"}


def test_what_a_record_is_called_by_is_not_secret() -> None:
    env = {"TASK": "book-the-room", "MODEL": "my-model-7b", "URL": "http://127.0.0.1:8000"}
    options = run_config(agent_env=env, model="my-model-7b", base_url="http://127.0.0.1:8000/v1")
    assert secrets_of(options, ("book-the-room__1f",)) == set()


def test_a_record_names_the_variable_and_going_on_takes_its_value_from_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = run_config(agent_env={"CANARY": "canary-123", "BENCHFLOW_ASK": "1"})
    recorded = RunConfig.model_validate(recorded_config(options))
    assert recorded.agent.env == {"CANARY": "[redacted]", "BENCHFLOW_ASK": "1"}
    with pytest.raises(UsageError, match="CANARY") as caught:
        with_secrets(recorded)
    assert "export CANARY" in caught.value.hint
    monkeypatch.setenv("CANARY", "canary-123")
    assert with_secrets(recorded) == options
