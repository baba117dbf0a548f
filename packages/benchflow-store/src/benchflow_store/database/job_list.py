"""The jobs of a database, with what changes when one of them does."""

from typing import NamedTuple

from .connection import Location, Mode, connect
from .schema import check_version, read_version

_LIST = """
SELECT j.name, j.home, j.epoch, j.revision, j.cursor, j.rewrites, j.control, COUNT(a.idx),
    COALESCE(SUM(CASE WHEN a.status = 'running' THEN 1 ELSE 0 END), 0),
    COALESCE(MAX(a.started), 0), COALESCE(MAX(a.finished), 0)
FROM jobs j LEFT JOIN attempts a ON a.job = j.id GROUP BY j.id ORDER BY j.name
"""


class ListedJob(NamedTuple):
    """One job of a database."""

    name: str
    home: str
    """The directory of the job on the machine that ran the job last."""
    stamp: tuple[object, ...]
    """Equal as long as nothing of the job's record changes."""


def list_jobs(location: Location, *, mode: Mode = "read") -> list[ListedJob]:
    """Return the jobs of the database at `location` by name; none if it never had a job.

    Raises:
        StoreError: The database is missing, damaged or of another version.
    """
    db = connect(location, mode)
    try:
        if read_version(db) == 0:
            return []
        check_version(db)
        rows = db.query(_LIST)
    finally:
        db.close()
    return [ListedJob(str(name), str(home), tuple(rest)) for name, home, *rest in rows]
