"""The static files are those of the manifest, and nothing else can be read through them."""

import hashlib
import json
import re
from pathlib import Path

import benchflow_dashboard
import pytest

STATIC = Path(benchflow_dashboard.__file__).parent / "static"
VENDORED = STATIC / "vendored"
PACKAGES = json.loads((VENDORED / "manifest.json").read_text())["packages"]


def test_the_manifest_has_each_vendored_file() -> None:
    named = {file["name"] for package in PACKAGES for file in package["files"]}
    assert named == {path.name for path in VENDORED.iterdir()} - {"manifest.json"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package["package"])
def test_a_vendored_package_is_the_one_of_the_manifest(package) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", package["archive_sha256"])
    for file in package["files"]:
        body = (VENDORED / file["name"]).read_bytes()
        assert hashlib.sha256(body).hexdigest() == file["sha256"], file["name"]
        if not file["name"].startswith("LICENSE"):
            assert f"-{package['version']}." in file["name"]
    licences = [f["name"] for f in package["files"] if f["name"].startswith("LICENSE")]
    text = "".join((VENDORED / name).read_text() for name in licences)
    words = {"MIT": "Permission is hereby granted", "0BSD": "with or without fee"}
    assert words[package["licence"]] in text


def test_no_style_of_ours_needs_a_data_image() -> None:
    for path in STATIC.glob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        assert "data:" not in text, path
        assert not re.search(r"url\((?!\"/static/)", text), path
    icons = set(
        re.findall(r"--pico-icon-[a-z]+(?=:url)", (VENDORED / "pico-2.1.1.min.css").read_text())
    )
    assert icons
    assert {name for name in icons if f"{name}:" not in (STATIC / "app.css").read_text()} == set()


@pytest.mark.parametrize("name", ["app.css", "tokens.css", "tree.css"])
def test_each_rule_of_a_style_is_closed(name: str) -> None:
    """A rule that is not closed takes the next rules into itself, and they match nothing."""
    text = re.sub(r"/\*.*?\*/", "", (STATIC / name).read_text(), flags=re.DOTALL)
    depth, is_media = 0, False
    for opening in re.finditer(r"([^{}]*)([{}])", text):
        if opening[2] == "{":
            assert depth == 0 or (depth == 1 and is_media), opening[1].strip()
            is_media = is_media if depth else opening[1].strip().startswith("@")
            depth += 1
        else:
            depth -= 1
    assert depth == 0


def test_a_static_file_is_compressed_tagged_and_kept(client) -> None:
    page = client.get("/runs").text
    [url] = re.findall(r'src="(/static/app.js[^"]+)"', page)
    answer = client.get(url)
    assert answer.status_code == 200
    assert answer.headers["content-encoding"] == "gzip"
    assert "immutable" in answer.headers["cache-control"]
    tag = answer.headers["etag"]
    assert client.get(url, headers={"if-none-match": tag}).status_code == 304
    assert "immutable" not in client.get(url.partition("?")[0]).headers["cache-control"]
    [vendored] = re.findall(r'@import url\("([^"]+)"\)', (STATIC / "app.css").read_text())
    assert "immutable" in client.get(vendored).headers["cache-control"]
    plain = client.get(url, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == answer.content


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%00",
        "/static/app.css%00.js",
        "/static/vendored/LICENSE.htmx",
        "/static/vendored",
        "/static/",
    ],
)
def test_nothing_else_is_served(client, path: str) -> None:
    assert client.get(path).status_code == 404
