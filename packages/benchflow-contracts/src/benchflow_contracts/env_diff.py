"""What changed between two states of a world."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ._model import Model

Row = tuple[Any, ...]


class RowChange(Model):
    """One row, by its primary key, before and after."""

    before: Row
    after: Row


class TableDiff(Model):
    """The rows of one table that differ.

    A table without a key has no `changed` rows: one is removed and another one added.
    """

    columns: tuple[str, ...] = ()
    added: tuple[Row, ...] = ()
    removed: tuple[Row, ...] = ()
    changed: tuple[RowChange, ...] = ()
    opaque: bool = False
    """It differs, but it is too big for rows on one side at least: only counts are known."""
    rows_before: int = Field(default=0, ge=0)
    rows_after: int = Field(default=0, ge=0)


class FileDiff(Model):
    """State files by path."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class EnvDiff(Model):
    """From one EnvState to another: by database, by table. What is equal is left out."""

    databases: Mapping[str, Mapping[str, TableDiff]] = {}
    files: FileDiff = FileDiff()

    @property
    def empty(self) -> bool:
        """Whether the two states are equal."""
        return not self.databases and self.files == FileDiff()
