"""The adapter and the exporter against the conformance kits."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from benchflow_contracts import AdapterOptions
from benchflow_quiz.adapter import QuizAdapter
from benchflow_quiz.exporter import RewardsExporter
from benchflow_testing import AdapterSubject, CheckResult, check_adapter, check_exporter


def not_passed(results: list[CheckResult]) -> list[tuple[str, str]]:
    return [(each.name, each.reason) for each in results if each.status != "passed"]


def write(quiz: object) -> Callable[[Path], None]:
    def into(folder: Path) -> None:
        (folder / "quiz.json").write_text(json.dumps(quiz))

    return into


def test_the_adapter_keeps_every_promise() -> None:
    adapter = QuizAdapter(options=AdapterOptions())
    subject = AdapterSubject(adapter, write({"question": "Why?"}), write({"question": 1}))
    assert not_passed(asyncio.run(check_adapter(subject))) == []


def test_the_exporter_keeps_every_promise() -> None:
    assert not_passed(asyncio.run(check_exporter(RewardsExporter()))) == []
