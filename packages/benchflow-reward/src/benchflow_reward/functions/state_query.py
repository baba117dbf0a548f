"""StateQuery: a reward for rows of the world's database."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchflow_contracts import Evidence, RewardError, RolloutNode, TableState, VerifyResult

from benchflow_reward.strict_json import same_json


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuery:
    """1 when the rows of a table fit, else 0. Output space, terminal.

    Of the rows of `table` in `database` whose columns equal `where`, there are
    `count` (when given), and in each the columns equal `equals` (when given; then
    there is at least one row).
    """

    database: str
    """The state path, as the manifest declares it."""
    table: str
    where: Mapping[str, Any] = field(default_factory=dict[str, Any])
    count: int | None = None
    equals: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str = "state"
    needs_processes: ClassVar[bool] = False

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Look the rows up in the final state.

        Raises:
            RewardError: The state was not captured, has no such table or column,
                or the table is so big that only its digest was recorded.
        """
        del evidence  # the state is in the node
        rows = [row for row in self._rows(node) if _fits(row, self.where)]
        right = self.count is None or len(rows) == self.count
        if self.equals:
            right = right and bool(rows) and all(_fits(row, self.equals) for row in rows)
        return VerifyResult(
            reward=1.0 if right else 0.0,
            items={"rows": float(len(rows))},
            meta={"table": self.table},
        )

    def _rows(self, node: RolloutNode) -> list[dict[str, Any]]:
        table = self._table(node)
        if table.rows is None:
            raise RewardError(
                f"table {self.table!r} has {table.row_count} rows, too many to be recorded",
                hint="query a smaller table, or use a script verifier",
            )
        if missing := (self.where.keys() | self.equals.keys()) - set(table.columns):
            raise RewardError(f"table {self.table!r} has no columns {sorted(missing)!r}")
        return [dict(zip(table.columns, row, strict=True)) for row in table.rows]

    def _table(self, node: RolloutNode) -> TableState:
        state = node.env_state
        if state is None:
            raise RewardError(
                f"{self.name!r} needs the environment's state, and none was captured",
                hint="declare [environment.state] in the manifest, without --capture-state none",
            )
        if self.database not in state.databases:
            raise RewardError(
                f"no database {self.database!r} in the state; known: {sorted(state.databases)!r}"
            )
        tables = state.databases[self.database]
        if self.table not in tables:
            raise RewardError(f"no table {self.table!r} in {self.database!r}")
        return tables[self.table]


def _fits(row: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(same_json(row[column], value) for column, value in wanted.items())
