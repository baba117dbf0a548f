from pathlib import Path

from benchflow_contracts import Bundle


def key_of(tree):
    return Bundle.of(tree, Path("/opt/tree")).key


def test_the_key_of_a_bundle_changes_with_its_bytes_names_modes_and_links(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    program = tree / "program"
    program.write_text("1")
    keys = [key_of(tree)]
    program.write_text("2")
    keys.append(key_of(tree))
    program.chmod(0o755)
    keys.append(key_of(tree))
    program.rename(tree / "other")
    keys.append(key_of(tree))
    (tree / "link").symlink_to("other")
    keys.append(key_of(tree))
    assert len(set(keys)) == len(keys)


def test_equal_trees_have_equal_keys_wherever_they_are(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "file").write_text("same")
    assert key_of(tmp_path / "here") == key_of(tmp_path / "there")


def test_a_bundle_may_be_one_file(tmp_path):
    (tmp_path / "tool").write_text("#!/bin/sh")
    bundle = Bundle.of(tmp_path / "tool", Path("/usr/local/bin/tool"))
    assert bundle.source == str(tmp_path / "tool")
    assert bundle.key.startswith("sha256:")
