"""Every code block in the README and the documentation runs."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from forked_bench import ForkedBench

sys.path.insert(0, str(Path(__file__).parent))

from blocks import blocks, run_page

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("apps/*/README.md"),
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("adapters/*/README.md"),
    ]
)
LANGUAGES = {"bash", "python", "toml", "yaml", "text", "json", "markdown", "mermaid", "c"}


def has_code(page: Path) -> bool:
    return any(b.language in {"bash", "python"} and not b.skip for b in blocks(page))


@pytest.fixture(scope="session")
def forked_bench() -> Iterator[ForkedBench]:
    with closing(ForkedBench()) as forked:
        yield forked


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [p for p in PAGES if has_code(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, forked_bench: ForkedBench) -> None:
    for name in ("adapters", "apps", "benchmarks", "docs", "run", "packages"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert run_page(page, tmp_path, forked_bench.programs) > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_names_a_language_that_we_know(page: Path) -> None:
    fences = [line for line in page.read_text().splitlines() if line.startswith("```")]
    assert len(fences) % 2 == 0
    assert {block.language for block in blocks(page)} <= LANGUAGES
    assert len(blocks(page)) == len(fences) // 2
