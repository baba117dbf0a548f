"""Run data reaches a page as escaped text only: what templates must not contain."""

import re
from html.parser import HTMLParser
from pathlib import Path

import benchflow_dashboard
import pytest

HOME = Path(benchflow_dashboard.__file__).parent
TEMPLATES = sorted((HOME / "templates").rglob("*.html"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_has_nothing_that_run_data_could_leave(path: Path) -> None:
    text = path.read_text()
    assert "|safe" not in text.replace(" ", "")
    assert "autoescape" not in text
    assert not re.search(r"\son[a-z]+\s*=", text), "an inline handler"
    assert not re.search(r"\sstyle\s*=|<style", text), "an inline style: the CSP refuses it"
    assert not re.search(r"<script(?![^>]*\ssrc=)[^>]*>", text), "an inline script"
    assert "javascript:" not in text
    assert "hx-on" not in text
    for name, value in re.findall(r'\s((?:hx|sse)-[a-z-]+|href|src|action)="([^"]*)"', text):
        for inserted in re.findall(r"\{\{(.*?)\}\}", value):
            is_url = re.search(r"asset_url\(|urls?\b|urlencode|_urls?\b", inserted)
            assert is_url, f'{name}="{value}": name the value *_url, or pass it through urlencode'


class Attributes(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.raw: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.raw.append(self.get_starttag_text() or "")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_each_attribute_is_quoted(path: Path) -> None:
    # Statements of Jinja may stand between attributes; a value is never a statement alone.
    text = re.sub(r"\{%.*?%\}|\{#.*?#\}", " ", path.read_text(), flags=re.DOTALL)
    text = re.sub(r"\{\{.*?\}\}", "value", text, flags=re.DOTALL)
    parser = Attributes()
    parser.feed(text)
    for tag in parser.raw:
        assert not re.search(r"=\s*[^\s\"'>]", re.sub(r'"[^"]*"|\'[^\']*\'', '""', tag)), tag


def test_only_the_drawings_of_trees_are_markup() -> None:
    modules = [path for path in HOME.rglob("*.py") if "__html__" in path.read_text()]
    assert modules == [HOME / "tree" / "svg.py"]


def test_no_module_marks_text_as_safe() -> None:
    for path in HOME.rglob("*.py"):
        text = path.read_text()
        assert "Markup(" not in text, path
        assert "markupsafe" not in text, path
