"""ClawsBench with its world in an image of a Docker engine."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

CLAWS = Path(__file__).parents[2] / "benchmarks" / "clawsbench"


@contextmanager
def clawsbench_in_engine(image: str, directory: Path) -> Iterator[Path]:
    """Build the world over `image`; yield a copy of the benchmark that names the built image."""
    name = f"benchflow-parity-{secrets.token_hex(4)}:1"
    copy, build = directory / "claws", directory / "image"
    shutil.copytree(CLAWS, copy, ignore=shutil.ignore_patterns("images"))
    shutil.copytree(CLAWS / "images/clawsbench-base/rootfs", build / "rootfs", symlinks=True)
    (build / "Dockerfile").write_text(f"FROM {image}\nCOPY rootfs /\n")
    manifest = copy / "environment.toml"
    manifest.write_text(manifest.read_text().replace("clawsbench-base:latest", name))
    client = docker.from_env()
    try:
        client.images.build(path=str(build), tag=name, network_mode="none")
        try:
            yield copy
        finally:
            client.images.remove(name)
    finally:
        client.close()
