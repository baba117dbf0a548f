"""The entry point `manifest` of the group `benchflow.environments`."""

from pathlib import Path

from benchflow_contracts import EnvironmentFactory

from .environment import ManifestEnvironment
from .reader import load_manifest


def manifest_environment(manifest: Path) -> EnvironmentFactory:
    """Read a manifest; return what makes its environments.

    Raises:
        ManifestError: As `load_manifest` does.
    """
    read = load_manifest(manifest)
    directory = manifest.absolute().parent

    def make() -> ManifestEnvironment:
        return ManifestEnvironment(read, directory)

    return make
