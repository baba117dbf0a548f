/* The makers of unix sockets, as launcher_process/criu/socket_owners.py of benchflow-sandbox-local writes them. */
#ifndef BF_OWNERS_H
#define BF_OWNERS_H

/* Take the table that is the whole content of a file; return -1 when it is none. */
int take_owners(int fd);

#endif
