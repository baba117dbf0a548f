"""The built site needs no other host, and documents every public package."""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MERMAID = ROOT / "docs/assets/mermaid"
TAG = re.compile(r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*>", re.IGNORECASE)
LINK = re.compile(r"<link\b[^>]*>", re.IGNORECASE)
REMOTE = re.compile(r"""\b(?:src|href|data|srcset)\s*=\s*["']?\s*(?:https?:)?//""", re.IGNORECASE)
REMOTE_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?\s*(?:https?:)?//""", re.IGNORECASE)
NO_REQUEST = re.compile(r'rel=["\']?(?:canonical|next|prev)\b')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the documentation strictly."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.mark.timeout(1300)
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    remote: list[str] = []
    for page in site.rglob("*.html"):
        text = page.read_text()
        links = [link for link in LINK.findall(text) if not NO_REQUEST.search(link)]
        found = [tag for tag in (*TAG.findall(text), *links) if REMOTE.search(tag)]
        remote += [f"{page.relative_to(site)}: {each}" for each in found]
        remote += [f"{page.relative_to(site)}: a style" for _ in REMOTE_STYLE.findall(text)]
    for sheet in site.rglob("*.css"):
        remote += [f"{sheet.relative_to(site)}" for _ in REMOTE_STYLE.findall(sheet.read_text())]
    assert remote == []


@pytest.mark.timeout(1300)
def test_no_script_of_the_theme_names_a_host_that_serves_scripts(site: Path) -> None:
    hosts = re.compile(
        r"https?://(?:unpkg\.com|cdn\.|cdnjs\.|[\w.]*jsdelivr\.net|fonts\.)[^\"'` ]*"
    )
    scripts = [script for script in site.rglob("*.js") if script.name != "mermaid.min.js"]
    assert scripts
    assert {url for script in scripts for url in hosts.findall(script.read_text())} == set()


@pytest.mark.timeout(1300)
def test_a_page_with_a_picture_loads_mermaid_from_the_site(site: Path) -> None:
    pictures = [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text()]
    assert {"index.html", "architecture/index.html"} <= {
        str(page.relative_to(site)) for page in pictures
    }
    for page in pictures:
        [script] = re.findall(r'<script src="([^"]*mermaid\.min\.js)"', page.read_text())
        assert (page.parent / script).resolve() == site / "assets/mermaid/mermaid.min.js"
        assert (site / "assets/mermaid/LICENSE").is_file()


def test_the_copy_of_mermaid_is_the_one_of_its_manifest() -> None:
    manifest = tomllib.loads((MERMAID / "manifest.toml").read_text())["mermaid"]
    script = (MERMAID / manifest["file"]).read_bytes()
    assert hashlib.sha256(script).hexdigest() == manifest["sha256"]
    assert f'version:"{manifest["version"]}"'.encode() in script
    assert manifest["licence"] in (MERMAID / manifest["licence_file"]).read_text()


def test_every_package_is_in_the_reference() -> None:
    homes = [p for place in ("packages", "adapters", "apps") for p in ROOT.glob(f"{place}/*/src/*")]
    packages = {home.name for home in homes if (home / "__init__.py").is_file()}
    pages = [page.read_text() for page in ROOT.glob("docs/reference/**/*.md")]
    named = {name for text in pages for name in re.findall(r"^::: (\w+)", text, re.MULTILINE)}
    assert packages - named == set()


@pytest.mark.timeout(1300)
def test_a_field_in_the_reference_has_its_type(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference/api/store/index.html").read_text())
    assert "task_digest: str" in text
    assert "reward: float | None" in text


def test_the_example_of_the_readme_is_a_file() -> None:
    code = (ROOT / "docs/examples/first_rollout.py").read_text()
    assert f"```python\n{code}```\n" in (ROOT / "README.md").read_text()
