"""Copy a PostgreSQL database inside its server: files are copied, not rows."""

import json
from uuid import uuid4

from benchflow_contracts import EnvironmentError_

from benchflow_env_manifest.sandbox_shell import SandboxShell

from .postgres_session import PostgresSession
from .spool import tree_digest

# For a smaller database a dump is faster: copies of files need checkpoints.
_FIT = """
SELECT pg_database_size(d.oid) > 24000000
    AND current_setting('server_version_num')::int >= 150000 AND datacl IS NULL
    AND dattablespace = (SELECT oid FROM pg_tablespace WHERE spcname = 'pg_default')
    AND NOT EXISTS (SELECT 1 FROM pg_db_role_setting WHERE setdatabase = d.oid)
    AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
  FROM pg_database d WHERE datname = :'db' AND datname <> 'template1';
"""
_CLOSE = """
ALTER DATABASE :"db" WITH ALLOW_CONNECTIONS false;
SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity
  WHERE datname = :'db' \\g /dev/null
"""
_OPEN = """
SELECT format('ALTER DATABASE %I WITH ALLOW_CONNECTIONS true', datname)
  FROM pg_database WHERE datname = :'db' AND NOT datallowconn \\gexec
"""
_COPY = """
SELECT pg_get_userbyid(datdba) AS owner FROM pg_database WHERE datname = :'db' \\gset
CREATE DATABASE :"to" WITH TEMPLATE :"from" OWNER :"owner"
  STRATEGY file_copy ALLOW_CONNECTIONS false;
"""
_FILES = """
CHECKPOINT;
SELECT current_setting('data_directory') || '/base/' || oid
  FROM pg_database WHERE datname = :'copy';
"""
_SWAP = """
BEGIN;
ALTER DATABASE :"db" RENAME TO :"old";
ALTER DATABASE :"fresh" RENAME TO :"db";
COMMIT;
"""
_DROP = 'DROP DATABASE IF EXISTS :"name" WITH (FORCE);'


class PostgresTemplate:
    """A closed copy of the database, for services that reconnect by themselves.

    An administrator of the server can change a copy, so its files have a digest.
    """

    def __init__(self, shell: SandboxShell, session: PostgresSession) -> None:
        self._shell = shell
        self._session = session

    async def fits(self) -> bool:
        """Return whether the database is large and a copy of its files is complete."""
        return await self._session.administer(_FIT, "an inspection of the server") == "t"

    async def make(self) -> str:
        """End all sessions and copy the database; return the data for `restore`."""
        name = f"benchflow_{uuid4().hex}"
        try:
            await self._session.administer(
                _CLOSE + _COPY, "a copy", **{"from": self._session.database, "to": name}
            )
            digest = await self._digest(name)
        except BaseException:
            await self.drop(name)
            raise
        finally:
            await self._session.administer(_OPEN, "opening")
        return json.dumps({"name": name, "digest": digest})

    async def restore(self, copy: str) -> None:
        """Replace the database by a second copy of `copy`; all sessions end."""
        source = json.loads(copy)
        if await self._digest(source["name"]) != source["digest"]:
            raise EnvironmentError_("restore failed: the snapshot does not match its digest")
        fresh, old = (f"benchflow_{uuid4().hex}" for _ in range(2))
        try:
            await self._session.administer(_COPY, "a copy", **{"from": source["name"], "to": fresh})
            await self._session.administer(_CLOSE + _SWAP, "the swap", fresh=fresh, old=old)
        finally:
            await self._session.administer(_OPEN, "opening")
            await self.drop(fresh)
            await self.drop(old)

    async def forget(self, copy: str) -> None:
        """Drop the copy. Idempotent."""
        await self.drop(json.loads(copy)["name"])

    async def drop(self, name: str) -> None:
        """Drop a database of BenchFlow if it exists."""
        await self._session.administer(_DROP, "dropping a copy", name=name)

    async def _digest(self, name: str) -> str:
        where = await self._session.administer(_FILES, "an inspection of a copy", copy=name)
        if not where:
            raise EnvironmentError_("restore failed: the snapshot is not in this sandbox")
        # The server creates and removes this cache at any time, and its content does not matter.
        await self._shell.must(["rm", "-f", f"{where}/pg_internal.init"], what="clearing a cache")
        return await tree_digest(self._shell, where)
