"""The configuration of the sandbox provider in Inspect."""

from pathlib import Path

import pytest
from benchflow_adapters_inspect.sandbox.settings import BenchflowSandboxConfig
from benchflow_contracts import UsageError


def test_without_a_configuration_the_provider_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCHFLOW_INSPECT_PROVIDER", raising=False)
    config = BenchflowSandboxConfig.of(None)
    assert config.provider_name() == "local"
    assert config.spec(output_bytes=1).user == "agent"


def test_a_variable_names_the_default_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_INSPECT_PROVIDER", "subprocess")
    assert BenchflowSandboxConfig.of(None).provider_name() == "subprocess"


def test_a_name_is_an_image_of_docker_with_the_images_own_user() -> None:
    config = BenchflowSandboxConfig.of("python:3.12")
    spec = config.spec(output_bytes=1)
    assert (config.provider_name(), spec.image, spec.user, spec.workdir) == (
        "docker", "python:3.12", "", "",
    )  # fmt: skip


def test_a_dockerfile_is_built_from_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    recipe = BenchflowSandboxConfig.of(str(path)).spec(output_bytes=1).recipe
    assert recipe is not None
    assert (recipe.context, recipe.dockerfile) == (tmp_path, "Dockerfile")


def test_a_toml_file_is_read_and_its_dockerfile_is_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "benchflow-sandbox.toml"
    path.write_text('dockerfile = "images/Dockerfile"\nmemory_mb = 512\n[env]\nA = "1"\n')
    config = BenchflowSandboxConfig.of(str(path))
    spec = config.spec(output_bytes=1)
    assert spec.recipe is not None
    assert spec.recipe.context == tmp_path / "images"
    assert (spec.limits.memory_mb, spec.env) == (512, {"A": "1"})


@pytest.mark.parametrize("text", ["x = ", "unknown = 1", "memory_mb = 'much'"])
def test_a_malformed_file_is_a_usage_error_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"x\.toml is not a sandbox configuration"):
        BenchflowSandboxConfig.of(str(path))


def test_configurations_can_be_in_a_set() -> None:
    one, same = (BenchflowSandboxConfig(env={"A": "1"}) for _ in range(2))
    assert len({one, same, BenchflowSandboxConfig()}) == 2


def test_a_command_may_write_what_inspect_allows_and_at_least_64_mib() -> None:
    config = BenchflowSandboxConfig()
    assert config.spec(output_bytes=1).limits.output_bytes == 64 * 1024 * 1024
    assert config.spec(output_bytes=1 << 28).limits.output_bytes == 1 << 28
