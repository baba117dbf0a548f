"""The SQL behind `PostgresState`, for `psql`."""

_USER_SCHEMAS = "nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'"

# One statement locks all tables, so that two such sessions cannot block each other. The
# message makes the commit reach the disk, and with it all commits before.
HOLD = f"""
SET synchronous_commit = on;
SELECT 1 FROM pg_logical_emit_message(true, 'benchflow', '') \\g /dev/null
BEGIN;
SET LOCAL lock_timeout = '30s';
DO $$ DECLARE tables text; BEGIN
  SELECT string_agg(format('%I.%I', nspname, relname), ', ' ORDER BY c.oid) INTO tables
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND relpersistence <> 't' AND {_USER_SCHEMAS};
  IF tables IS NOT NULL THEN EXECUTE 'LOCK TABLE ' || tables || ' IN SHARE MODE'; END IF;
END $$;
SELECT 'locked';
"""  # noqa: S608 - only constants of this file are in it

# Integers, booleans and floats as JSON has them, bytes as digests, all else as text.
READ = f"""
SET TIME ZONE 'UTC'; SET datestyle = 'ISO'; SET intervalstyle = 'iso_8601';
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
WITH t AS (
  SELECT nspname || '.' || relname AS name, format('%I.%I', nspname, relname) AS ref,
    (SELECT json_agg(attname ORDER BY attnum) FROM pg_attribute
      WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) AS columns,
    (SELECT string_agg(format(CASE
        WHEN atttypid IN (16, 20, 21, 23, 700, 701) THEN 'coalesce(to_json(%1$I)::text, ''null'')'
        WHEN atttypid = 17 THEN
          'coalesce(to_json(''sha256:'' || encode(sha256(%1$I), ''hex''))::text, ''null'')'
        ELSE 'coalesce(to_json(%1$I::text)::text, ''null'')' END, attname),
        ' || '','' || ' ORDER BY attnum) FROM pg_attribute
      WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) AS cells,
    (SELECT json_agg(attname ORDER BY k.n) FROM pg_index i,
      unnest(i.indkey) WITH ORDINALITY k(number, n), pg_attribute a
      WHERE indrelid = c.oid AND indisprimary AND attrelid = c.oid AND attnum = k.number) AS key,
    (SELECT string_agg(format('%I', attname), ', ' ORDER BY k.n) FROM pg_index i,
      unnest(i.indkey) WITH ORDINALITY k(number, n), pg_attribute a
      WHERE indrelid = c.oid AND indisprimary AND attrelid = c.oid AND attnum = k.number) AS sort
  FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
  WHERE relkind = 'r' AND relpersistence <> 't' AND {_USER_SCHEMAS})
SELECT command FROM t, LATERAL (VALUES
  (1, format('SELECT %L', json_build_object('table', name, 'columns',
     coalesce(columns, '[]'), 'key', coalesce(key, '[]'))::text)),
  (2, format('SELECT ''['' || %s || '']'' FROM %s ORDER BY %s',
     coalesce(cells, ''''''), ref, coalesce(sort, '1')))) v(n, command)
  ORDER BY name COLLATE "C", n \\gexec
COMMIT;
"""  # noqa: S608 - only constants of this file are in it

RESTORE = f"""
BEGIN;
SET LOCAL lock_timeout = '30s';
DO $$ DECLARE s record; BEGIN
  FOR s IN SELECT nspname AS name, pg_get_userbyid(nspowner) AS owner FROM pg_namespace
    WHERE {_USER_SCHEMAS} LOOP
    EXECUTE format('DROP SCHEMA %I CASCADE', s.name);
    IF s.name = 'public' THEN
      EXECUTE format('CREATE SCHEMA public AUTHORIZATION %I', s.owner);
      GRANT USAGE ON SCHEMA public TO PUBLIC;
    END IF;
  END LOOP;
END $$;
\\i {{dump}}
COMMIT;
"""  # noqa: S608 - BenchFlow chooses the path of the dump
