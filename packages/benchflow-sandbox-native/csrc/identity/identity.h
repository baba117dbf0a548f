/*
 * bf-identity.so: files keep their identity for processes that live through a fork.
 *
 * Loaded into each program of a box. It answers for the stat functions of libc and reports,
 * for a file on the box's root, one constant st_dev and, where the host pinned it, the
 * st_ino that was seen before the fork. No libc is linked: it works in a glibc root as in a
 * musl one. No memory is allocated, nothing is kept between two calls, errno is set by a
 * failure alone: each function may be called wherever the kernel's own call may.
 *
 *   identity.c  what is reported instead
 *   entry.c     the functions that programs call
 *   kernel.h    system calls without a libc
 */
#ifndef BF_IDENTITY_H
#define BF_IDENTITY_H

#include <sys/stat.h>

/* No kernel gives this out: anonymous devices are numbered from 1, lowest first. */
#define CONSTANT_MAJOR 0u
#define CONSTANT_MINOR 0xfbf01u

/* What a call named its file by, to ask the same file for its attribute. */
struct named {
    int fd;           /* a directory, or the file itself when path is empty; may be AT_FDCWD */
    const char *path; /* "" for the fd itself */
    int follow;       /* a link in the last place */
};

/* Replace the identity in what the kernel said about the file. */
void keep_identity(struct named file, struct stat *info);
void keep_identity_x(struct named file, struct statx *info);

#endif
