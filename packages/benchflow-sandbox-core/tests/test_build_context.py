import os

import pytest
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.image import ImageRecipe
from benchflow_sandbox_core.recipe import context
from benchflow_sandbox_core.recipe.context import BuildContext
from benchflow_sandbox_core.recipe.ignore import Ignore
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("patterns", "excluded", "kept"),
    [
        ("*.log", ["a.log"], ["b/a.log", "a.log.txt"]),
        ("**/*.log", ["a.log", "b/c/a.log"], ["b/alog"]),
        ("/build/", ["build", "build/x/y"], ["src/build"]),
        ("b/**/d", ["b/d", "b/x/y/d", "b/d/below"], ["d", "x/b/d"]),
        ("*/temp?", ["a/temp1", "b/tempX/y"], ["temp1", "a/b/temp1"]),
        ("docs\n!docs/read.me", ["docs/x"], ["docs/read.me"]),
        ("!keep\nkeep", ["keep"], []),
        ("# docs\n\n  a[^b]c \n../x", ["adc", "x"], ["abc", "docs"]),
        ("**", ["a", "a/b"], []),
    ],
)
def test_patterns_leave_out_what_dockers_do(patterns, excluded, kept):
    ignore = Ignore.parse(patterns)
    assert {path: ignore.excludes(path) for path in (*excluded, *kept)} == {
        **dict.fromkeys(excluded, True),
        **dict.fromkeys(kept, False),
    }


@given(st.text("*?[]!^-/ab\\\n#. ", max_size=60), st.text("ab/", min_size=1, max_size=40))
def test_any_patterns_are_read_and_end(patterns, path):
    assert Ignore.parse(patterns).excludes(path) in {True, False}


def test_a_hostile_pattern_takes_no_time():
    ignore = Ignore.parse("/".join(["**", "*a" * 60] * 30) + "/end")
    assert not ignore.excludes("/".join(["a" * 200] * 40) + "/b")


def made(root, **files):
    for name, text in {"Dockerfile": "FROM scratch\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return ImageRecipe(context=root)


def digest(recipe):
    return BuildContext.scan(recipe).digest(recipe.dockerfile)


def test_names_bytes_and_permissions_make_the_digest_and_times_do_not(tmp_path):
    recipe = made(tmp_path, **{"a/b": "1"})
    first, signature = digest(recipe), BuildContext.scan(recipe).signature
    os.utime(tmp_path / "a" / "b", (1, 1))
    assert digest(recipe) == first
    assert BuildContext.scan(recipe).signature != signature
    seen = {first}
    for change in (
        lambda: (tmp_path / "a" / "b").write_text("2"),
        lambda: (tmp_path / "a" / "b").chmod(0o755),
        lambda: (tmp_path / "a" / "b").rename(tmp_path / "b"),
        lambda: (tmp_path / "link").symlink_to("/etc/passwd"),
        (tmp_path / "empty").mkdir,
    ):
        change()
        assert digest(recipe) not in seen
        seen.add(digest(recipe))


def paths(recipe):
    found = BuildContext.scan(recipe)
    return [entry.path for entry in found.entries], found.hidden


def test_what_is_ignored_is_not_there_nor_the_dockerfile(tmp_path):
    recipe = made(tmp_path, **{".dockerignore": "*\n!a/b", "a/b": "", "a/c": "", "d": ""})
    assert paths(recipe) == (["a/b"], True)
    (tmp_path / "Dockerfile.dockerignore").write_text("a\n*.dockerignore")
    assert paths(recipe) == (["Dockerfile", "d"], False)


def test_a_dockerfile_that_is_no_file_is_hidden_and_in_the_digest(tmp_path):
    recipe = made(tmp_path).model_copy(update={"inline": "FROM scratch", "dockerfile": "said"})
    assert paths(recipe) == (["Dockerfile"], True)
    assert BuildContext.scan(recipe).dockerfile == "FROM scratch"
    other = recipe.model_copy(update={"inline": "FROM other"})
    assert BuildContext.scan(recipe).signature != BuildContext.scan(other).signature
    assert digest(recipe) != digest(other)


def test_a_link_is_an_entry_that_nobody_follows(tmp_path):
    recipe = made(tmp_path)
    (tmp_path / "out").symlink_to("/")
    found = {entry.path: entry.target for entry in BuildContext.scan(recipe).entries}
    assert found == {"Dockerfile": "", "out": "/"}


def test_what_is_no_context_is_refused(tmp_path, monkeypatch):
    with pytest.raises(SandboxError, match="no Dockerfile"):
        digest(ImageRecipe(context=tmp_path))
    recipe = made(tmp_path)
    for name in ("/etc/passwd", "../Dockerfile"):
        with pytest.raises(SandboxError, match="not a path in the context"):
            digest(ImageRecipe(context=tmp_path, dockerfile=name))
    (tmp_path / "linked").symlink_to("Dockerfile")
    with pytest.raises(SandboxError, match="no Dockerfile 'linked'"):
        digest(ImageRecipe(context=tmp_path, dockerfile="linked"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SandboxError, match="pipe"):
        digest(recipe)
    (tmp_path / ".dockerignore").write_text("pipe")
    assert digest(recipe)
    monkeypatch.setattr(context, "MAX_BYTES", 10)
    with pytest.raises(SandboxError, match="has more than"):
        digest(recipe)
