"""Contents that containers are shown as files."""

import hashlib
from pathlib import Path
from typing import TypeVar

from benchflow_contracts.container import ContainerOptions
from benchflow_contracts.sandbox import SandboxSpec

_O = TypeVar("_O", bound=ContainerOptions)


class Texts:
    """Writes each content once, below a directory that outlives every sandbox of a provider."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def as_files(self, spec: SandboxSpec) -> SandboxSpec:
        """Return a spec whose containers have files of the host in the place of contents."""
        services = tuple(self._of(service) for service in spec.services)
        update = {"container": self._of(spec.container), "services": services}
        return spec.model_copy(update=update)

    def _of(self, options: _O) -> _O:
        if not options.texts:
            return options
        written = {inside: self._write(text) for inside, text in options.texts.items()}
        return options.model_copy(update={"files": {**options.files, **written}, "texts": {}})

    def _write(self, text: str) -> Path:
        data = text.encode()
        path = self._directory / hashlib.sha256(data).hexdigest()
        if not path.exists():
            self._directory.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o444)
        return path
