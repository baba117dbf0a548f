"""The schema of the record database: numbered files of plain SQL, and a version row."""

from functools import cache
from importlib.resources import files

from benchflow_contracts import StoreError

from .connection import SqlConnection
from .errors import SchemaVersionError

_NEEDED_BYTES = 1 << 20


@cache
def migrations() -> tuple[str, ...]:
    """Return the SQL of each migration, in order. The first one creates the tables."""
    directory = files("benchflow_store.database") / "migrations"
    names = sorted(each.name for each in directory.iterdir() if each.name.endswith(".sql"))
    return tuple((directory / name).read_text(encoding="utf-8") for name in names)


def read_version(connection: SqlConnection) -> int:
    """Return the schema version of the database, 0 if it is empty."""
    if not connection.has_table("schema_version"):
        return 0
    rows = connection.query("SELECT version FROM schema_version")
    if len(rows) != 1:
        raise StoreError(f"{connection.place}: {len(rows)} schema versions instead of one")
    return int(rows[0][0])


def check_version(connection: SqlConnection) -> None:
    """Require the schema version of this program.

    Raises:
        SchemaVersionError: The database has another one.
    """
    found, known = read_version(connection), len(migrations())
    if found != known:
        raise SchemaVersionError(connection.place, found, known)


def create_or_check(connection: SqlConnection) -> None:
    """Create the tables of an empty database; of another one, check the schema version.

    Raises:
        SchemaVersionError: The database has another version than this program.
    """
    if read_version(connection) == 0:
        migrate_schema(connection)
    check_version(connection)


def migrate_schema(connection: SqlConnection) -> tuple[int, int]:
    """Run the missing migrations in one transaction. Return the version before and after.

    Raises:
        SchemaVersionError: The database is newer than this program.
    """
    known = len(migrations())
    with connection.write_transaction(_NEEDED_BYTES, exclusive=True):
        before = read_version(connection)
        if before > known:
            raise SchemaVersionError(connection.place, before, known)
        for sql in migrations()[before:]:
            connection.run_script(sql)
        if before == 0:
            connection.run_script("CREATE TABLE schema_version (version BIGINT NOT NULL)")
            connection.query("INSERT INTO schema_version (version) VALUES (?)", (known,))
        elif before < known:
            connection.query("UPDATE schema_version SET version = ?", (known,))
    return before, known
