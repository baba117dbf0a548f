/*
 * bf-identity.so: keep the identity of files for processes in a live fork.
 *
 * Each program of a sandbox loads it. It replaces the stat functions of libc. For a file on the
 * sandbox's root it reports a constant st_dev. If the host has pinned the file, it also reports
 * the st_ino from before the fork. It links no libc, so it works in glibc and musl roots. It does
 * not allocate memory, keeps no state between two calls, and sets errno only on failure. So each
 * function may be called wherever the system call may be called.
 *
 *   identity.c  the replacement of the identity
 *   entry.c     the functions that programs call
 *   kernel.h    system calls without a libc
 */
#ifndef BF_IDENTITY_H
#define BF_IDENTITY_H

#include <sys/stat.h>

/* The kernel does not use this number: it numbers anonymous devices from 1 upwards. */
#define CONSTANT_MAJOR 0u
#define CONSTANT_MINOR 0xfbf01u

/* The arguments by which a call named its file, to read the attribute of the same file. */
struct file_name {
    int fd;           /* a directory, or the file itself for an empty path; may be AT_FDCWD */
    const char *path; /* "" for the fd itself */
    int follow;       /* whether to follow a symlink in the last part of the path */
};

/* Replace the identity of the file in the result of the kernel. */
void keep_identity(struct file_name file, struct stat *info);
void keep_identity_x(struct file_name file, struct statx *info);

#endif
