/*
 * A static program that keeps a SQLite database open and opens it again at each line that it
 * reads. It answers what the second connection was told, what the database holds and whether
 * it is whole. Built with SQLite inside, so that no library of the box reaches it.
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sqlite3 *held;

static void run(sqlite3 *database, const char *text)
{
    if (sqlite3_exec(database, text, NULL, NULL, NULL) == SQLITE_OK)
        return;
    printf("%s: %s\n", text, sqlite3_errmsg(database));
    exit(1);
}

static void tell(sqlite3 *database, const char *query)
{
    sqlite3_stmt *statement;
    if (sqlite3_prepare_v2(database, query, -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW)
        printf(" %s", sqlite3_errmsg(database));
    else
        printf(" %s", (const char *)sqlite3_column_text(statement, 0));
    sqlite3_finalize(statement);
}

static void second_writer(const char *path)
{
    sqlite3 *second;
    if (sqlite3_open(path, &second) != SQLITE_OK)
        printf("not opened");
    else if (sqlite3_exec(second, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_BUSY)
        printf("refused");
    else
        printf("admitted");
    tell(second, "SELECT count(*) FROM t");
    sqlite3_close(second);
}

int main(int count, char **arguments)
{
    char line[64];
    if (count != 3 || sqlite3_open(arguments[1], &held) != SQLITE_OK)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    run(held, arguments[2]);
    run(held, "CREATE TABLE t (x)");
    run(held, "BEGIN IMMEDIATE; INSERT INTO t VALUES (1)");
    printf("ready\n");
    while (fgets(line, sizeof line, stdin) != NULL) {
        second_writer(arguments[1]);
        run(held, "COMMIT");
        tell(held, "SELECT count(*) FROM t");
        tell(held, "PRAGMA integrity_check");
        printf("\n");
        run(held, "BEGIN IMMEDIATE; INSERT INTO t VALUES (1)");
    }
    return 0;
}
