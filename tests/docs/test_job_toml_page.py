"""The page of the job file names every key."""

import re
from pathlib import Path

from benchflow_contracts import Model
from benchflow_jobs.planning import JobConfig

PAGE = (Path(__file__).parents[2] / "docs/reference/job-toml.md").read_text()


def test_the_page_has_every_table_and_key() -> None:
    rows = re.findall(r"^\| (\S*?) ?\| (.*?) ?\| ", PAGE, re.MULTILINE)
    found: dict[str, set[str]] = {}
    table = ""
    for first, keys in rows:
        table = re.sub(r"[`\[\]]|\.\"ID\"", "", first) or table
        found.setdefault(table, set()).update(re.findall(r"`(\w+)`", keys))
    for name, field in JobConfig.model_fields.items():
        assert name in found, f"the page lacks the table {name!r}"
        if isinstance(field.default, Model):
            keys = set(type(field.default).model_fields) - {"tables"}
            assert found[name] == keys, name
