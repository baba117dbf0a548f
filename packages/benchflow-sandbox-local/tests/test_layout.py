"""Images as `docker save` and OCI layouts hold them, made here byte by byte."""

import asyncio
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile

import pytest
from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError
from benchflow_sandbox_local.rootfs.finder import ImageFinder
from benchflow_sandbox_local.rootfs.store import ImageStore

CONFIG = {"User": "app", "WorkingDir": "/srv", "Env": ["A=1"], "Entrypoint": ["/run"]}
LOWER = {"etc/": None, "etc/kept": b"kept", "etc/gone": b"gone", "var/": None, "var/old": b"old"}
UPPER = {"etc/.wh.gone": b"", "var/": None, "var/.wh..wh..opq": b"", "var/new": b"new"}


def packed(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name.rstrip("/"))
            info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            info.mode, info.size = 0o755, len(data or b"")
            tar.addfile(info, io.BytesIO(data or b""))
    return buffer.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def config_of(layers):
    return {"config": CONFIG, "rootfs": {"diff_ids": [digest(layer) for layer in layers]}}


def saved(path, layers, tag="tool:1", config=None):
    manifest = [
        {
            "Config": "c.json",
            "RepoTags": [tag],
            "Layers": [f"{n}.tar" for n, _ in enumerate(layers)],
        }
    ]
    files = {"c.json": json.dumps(config or config_of(layers)).encode()}
    files |= {f"{n}.tar": layer for n, layer in enumerate(layers)}
    files["manifest.json"] = json.dumps(manifest).encode()
    path.write_bytes(packed(files))


def layout(root, layers):
    blobs = root / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data):
        (blobs / digest(data).partition(":")[2]).write_bytes(data)
        return {"digest": digest(data)}

    manifest = {
        "config": put(json.dumps(config_of(layers)).encode()),
        "layers": [put(gzip.compress(layer)) for layer in layers],
    }
    index = {"manifests": [put(json.dumps(manifest).encode())]}
    (root / "index.json").write_text(json.dumps(index))


@pytest.fixture
def find(root, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    monkeypatch.setenv("BENCHFLOW_IMAGES", str(tmp_path))
    return lambda name: asyncio.run(ImageFinder(ImageStore(tmp_path / "store")).find(name, ()))


@pytest.mark.parametrize("kind", ["saved", "layout"])
def test_layers_are_taken_in_with_what_they_hide_and_what_the_image_says(find, tmp_path, kind):
    layers = [packed(LOWER), packed(UPPER)]
    (saved if kind == "saved" else layout)(
        tmp_path / ("tool.tar" if kind == "saved" else "tool"), layers
    )
    found = find("org/tool:1")
    upper, lower = found.lowers
    assert (lower / "etc" / "kept").read_text() == "kept"
    hidden = (upper / "etc" / "gone").stat()
    assert (stat.S_ISCHR(hidden.st_mode), hidden.st_rdev) == (True, 0)
    assert os.getxattr(upper / "var", "trusted.overlay.opaque") == b"y"
    assert sorted(path.name for path in (upper / "var").iterdir()) == ["new"]
    said = found.config
    assert (said.user, said.workdir, said.entrypoint) == ("app", "/srv", ("/run",))
    assert (said.env, found.complete) == ({"A": "1"}, True)
    assert find("tool:1") == found


def test_another_tag_is_another_image(find, tmp_path):
    saved(tmp_path / "tool.tar", [packed(LOWER)])
    with pytest.raises(SandboxUnsupportedError, match="image 'tool:2' was not found"):
        find("tool:2")


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"config": {}, "rootfs": {"diff_ids": ["sha256:00"]}}, "does not match its digest"),
        ({"config": {}, "rootfs": {"diff_ids": []}}, "number of layers"),
        ({"config": {}}, "malformed"),
        ({"config": {"Env": 1}, "rootfs": {"diff_ids": ["sha256:00"]}}, "Env"),
    ],
)
def test_an_image_that_is_not_what_it_says_is_refused_and_not_kept(find, tmp_path, config, what):
    saved(tmp_path / "tool.tar", [packed(LOWER)], config=config)
    with pytest.raises(SandboxError, match=what):
        find("tool")
    assert not list((tmp_path / "store").glob("**/etc"))


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../b"])
def test_a_layer_cannot_write_outside_of_itself(find, tmp_path, name):
    saved(tmp_path / "tool.tar", [packed({name: b"x"})])
    with pytest.raises(SandboxError, match="outside of the root"):
        find("tool")
