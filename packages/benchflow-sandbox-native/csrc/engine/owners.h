/* The makers of unix sockets. launcher_process/criu/socket_owners.py of benchflow-sandbox-local
 * writes them. */
#ifndef BF_OWNERS_H
#define BF_OWNERS_H

/* Map the table in a file; return -1 if the file is not a table. */
int load_owners(int fd);

#endif
