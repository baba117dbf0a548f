"""The page of kernel objects names the objects of the program, and says that none is lost."""

from hazards.changes import CHANGES
from hazards.in_sandbox.objects import OBJECTS
from hazards.page import ENGINES, PAGE, VERDICTS, read_page, verdict_of, write_page

REMEDY = "run `PYTHONPATH=tests/support ./run python -m hazards.page`"


def test_the_page_says_of_each_object_what_becomes_of_it():
    found = read_page(PAGE.read_text())
    for engine in ENGINES:
        assert list(found[engine]) == list(OBJECTS), REMEDY
        assert {verdict_of(cell) for cell in found[engine].values()} <= set(VERDICTS), REMEDY


def test_the_page_is_what_the_program_writes():
    text = PAGE.read_text()
    kernel = text.partition("\nLinux ")[2].partition(". `PYTHONPATH")[0]
    assert write_page(read_page(text), kernel) == text, REMEDY


def test_what_the_page_says_to_change_is_documented_and_nothing_is_lost():
    found = read_page(PAGE.read_text())
    for engine in ENGINES:
        verdicts = {name: verdict_of(cell) for name, cell in found[engine].items()}
        assert [name for name, verdict in verdicts.items() if verdict == "lost"] == []
        changed = {name for name, verdict in verdicts.items() if verdict == "changes"}
        assert changed <= CHANGES[engine] <= set(OBJECTS)
