"""Both sandboxes."""

import pytest
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_local import LocalProvider


@pytest.fixture(params=["local", "docker"])
def provider(request, tmp_path):
    if request.param == "local":
        return LocalProvider(store=tmp_path / "store")
    image = request.getfixturevalue("image")
    return DockerProvider(image=image, store=tmp_path / "store")
