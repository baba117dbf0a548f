"""The manifest of an image is found in what an engine saves of it, whatever is beside it."""

import hashlib
import io
import json
import tarfile

import pytest
from benchflow_sandbox_docker.image_without_volumes import layout, read_manifest
from hypothesis import given
from hypothesis import strategies as st

LAYERS = ["sha256:one", "sha256:two"]


def blob(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return hashlib.sha256(data).hexdigest(), data


def image(layers, **config):
    """Return the blobs of one image, its layers among them."""
    digest, file = blob({"rootfs": {"diff_ids": layers}, "config": config, "history": ["kept"]})
    packed = [blob(each.encode() * 9) for each in layers]
    manifest = {
        "schemaVersion": 2,
        "config": {"mediaType": "file", "digest": f"sha256:{digest}", "size": len(file)},
        "layers": [{"digest": f"sha256:{name}", "size": len(data)} for name, data in packed],
    }
    return {digest: file, **dict(packed), **dict([blob(manifest)])}


def archive(blobs):
    with io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for digest, data in blobs.items():
                member = tarfile.TarInfo(f"blobs/sha256/{digest}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return packed.getvalue()


def unpacked(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {each.name: json.loads(tar.extractfile(each).read()) for each in tar}


@given(st.randoms(use_true_random=False), st.integers(1, 4096))
def test_the_image_of_its_layers_is_found_in_any_order_and_cut_anywhere(random, size):
    attested = dict([blob({"layers": [], "config": {"digest": "sha256:none", "size": 2}})])
    blobs = list((image(LAYERS, Volumes={"/v": {}}) | image(LAYERS[:1]) | attested).items())
    random.shuffle(blobs)
    saved = archive(dict(blobs))
    pieces = [saved[at : at + size] for at in range(0, len(saved), size)]
    manifest, file = read_manifest(pieces, LAYERS)
    assert file.config == {"Volumes": {"/v": {}}}
    assert len(manifest.layers) == 2


def test_no_more_is_read_than_must_be():
    def pieces():
        yield archive({**image(LAYERS), "zz": bytes(1 << 20)})[: 1 << 19]
        pytest.fail("read on")

    assert read_manifest(pieces(), LAYERS) is not None


def test_what_is_made_of_it_keeps_all_but_the_volumes():
    saved = image(LAYERS, Volumes={"/v": {}}, Labels={"own": "label"}, Cmd=["it"])
    files = unpacked(layout("name:tag", *read_manifest([archive(saved)], LAYERS)))
    [entry] = files["index.json"]["manifests"]
    assert entry["annotations"] == {"io.containerd.image.name": "docker.io/library/name:tag"}
    manifest = files["blobs/sha256/" + entry["digest"].removeprefix("sha256:")]
    config = files["blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")]
    assert {each["digest"].removeprefix("sha256:") for each in manifest["layers"]} <= set(saved)
    assert manifest["config"]["mediaType"] == "file"
    assert config["config"].pop("Labels") == {"own": "label", "benchflow.kind": "built"}
    assert config == {
        "rootfs": {"diff_ids": LAYERS},
        "config": {"Cmd": ["it"], "Volumes": None},
        "history": ["kept"],
    }


@pytest.mark.parametrize(
    "saved",
    [
        b"",
        b"no archive" * 99,
        archive(image(LAYERS))[:1500],
        archive(image(LAYERS[:1])),
        archive(dict([blob(b"[" * 100_000)])),
        archive(dict([blob({"config": {"digest": 1, "size": "x"}, "layers": None})])),
    ],
)
def test_an_archive_without_the_image_has_no_manifest(saved):
    assert read_manifest([saved], LAYERS) is None


@given(st.binary(max_size=2048))
def test_whatever_is_saved_is_read_or_is_none(data):
    assert read_manifest([data], LAYERS) is None
    assert read_manifest([archive({"x": data})], LAYERS) is None
