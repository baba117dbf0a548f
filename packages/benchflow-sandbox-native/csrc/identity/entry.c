/*
 * The functions that programs call, under all names that any libc has used: glibc before 2.33
 * used __xstat, and musl before 1.2.4 had a second set for 64 bits. libuv calls statx by its
 * number, so syscall() is one of them.
 */
#include "identity.h"
#include "../kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>

/* The headers may declare these in another way, or as macros, so only the symbol has the name. */
#define EXPORT(symbol) __asm__(symbol) __attribute__((visibility("default")))
#define ALIAS(symbol, of) EXPORT(symbol) __attribute__((alias(of)))

static long checked(long answer)
{
    if (answer >= 0 || answer < -4095)
        return answer;
    errno = (int)-answer;
    return -1;
}

static struct file_name name_of(int fd, const char *path, int flags)
{
    return (struct file_name){
        .fd = fd,
        .path = path == NULL ? "" : path,
        .follow = !(flags & AT_SYMLINK_NOFOLLOW),
    };
}

static long ask(int fd, const char *path, struct stat *info, int flags)
{
    long answer = kernel(SYS_newfstatat, fd, (long)path, (long)info, flags, 0, 0);
    if (answer == 0)
        keep_identity(name_of(fd, path, flags), info);
    return answer;
}

static long ask_descriptor(int fd, struct stat *info)
{
    long answer = kernel(SYS_fstat, fd, (long)info, 0, 0, 0, 0);
    if (answer == 0)
        keep_identity(name_of(fd, "", 0), info);
    return answer;
}

static long ask_x(int fd, const char *path, int flags, unsigned int mask, struct statx *info)
{
    long answer = kernel(SYS_statx, fd, (long)path, flags, mask, (long)info, 0);
    if (answer == 0)
        keep_identity_x(name_of(fd, path, flags), info);
    return answer;
}

int bf_stat(const char *path, struct stat *info) EXPORT("stat");
int bf_stat64(const char *path, struct stat *info) ALIAS("stat64", "stat");
int bf_stat(const char *path, struct stat *info)
{
    return (int)checked(ask(AT_FDCWD, path, info, 0));
}

int bf_lstat(const char *path, struct stat *info) EXPORT("lstat");
int bf_lstat64(const char *path, struct stat *info) ALIAS("lstat64", "lstat");
int bf_lstat(const char *path, struct stat *info)
{
    return (int)checked(ask(AT_FDCWD, path, info, AT_SYMLINK_NOFOLLOW));
}

int bf_fstat(int fd, struct stat *info) EXPORT("fstat");
int bf_fstat64(int fd, struct stat *info) ALIAS("fstat64", "fstat");
int bf_fstat(int fd, struct stat *info)
{
    return (int)checked(ask_descriptor(fd, info));
}

int bf_fstatat(int fd, const char *path, struct stat *info, int flags) EXPORT("fstatat");
int bf_fstatat64(int fd, const char *path, struct stat *info, int flags)
    ALIAS("fstatat64", "fstatat");
int bf_fstatat(int fd, const char *path, struct stat *info, int flags)
{
    return (int)checked(ask(fd, path, info, flags));
}

/* Version 1 on x86_64 and 0 on aarch64 both mean the structure of the kernel. */
static int versioned(int version, long answer)
{
    return (int)checked(version == 0 || version == 1 ? answer : -EINVAL);
}

int bf_xstat(int version, const char *path, struct stat *info) EXPORT("__xstat");
int bf_xstat64(int version, const char *path, struct stat *info) ALIAS("__xstat64", "__xstat");
int bf_xstat(int version, const char *path, struct stat *info)
{
    return versioned(version, ask(AT_FDCWD, path, info, 0));
}

int bf_lxstat(int version, const char *path, struct stat *info) EXPORT("__lxstat");
int bf_lxstat64(int version, const char *path, struct stat *info) ALIAS("__lxstat64", "__lxstat");
int bf_lxstat(int version, const char *path, struct stat *info)
{
    return versioned(version, ask(AT_FDCWD, path, info, AT_SYMLINK_NOFOLLOW));
}

int bf_fxstat(int version, int fd, struct stat *info) EXPORT("__fxstat");
int bf_fxstat64(int version, int fd, struct stat *info) ALIAS("__fxstat64", "__fxstat");
int bf_fxstat(int version, int fd, struct stat *info)
{
    return versioned(version, ask_descriptor(fd, info));
}

int bf_fxstatat(int version, int fd, const char *path, struct stat *info, int flags)
    EXPORT("__fxstatat");
int bf_fxstatat64(int version, int fd, const char *path, struct stat *info, int flags)
    ALIAS("__fxstatat64", "__fxstatat");
int bf_fxstatat(int version, int fd, const char *path, struct stat *info, int flags)
{
    return versioned(version, ask(fd, path, info, flags));
}

int bf_statx(int fd, const char *path, int flags, unsigned int mask, struct statx *info)
    EXPORT("statx");
int bf_statx(int fd, const char *path, int flags, unsigned int mask, struct statx *info)
{
    return (int)checked(ask_x(fd, path, flags, mask, info));
}

long bf_syscall(long number, ...) EXPORT("syscall");
long bf_syscall(long number, ...)
{
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(arguments, long); /* the kernel ignores arguments that were not passed */
    va_end(arguments);
    switch (number) {
    case SYS_statx:
        return checked(
            ask_x((int)a[0], (const char *)a[1], (int)a[2], (unsigned int)a[3], (void *)a[4]));
    case SYS_newfstatat:
        return checked(ask((int)a[0], (const char *)a[1], (void *)a[2], (int)a[3]));
    case SYS_fstat:
        return checked(ask_descriptor((int)a[0], (void *)a[1]));
#ifdef SYS_stat
    case SYS_stat:
        return checked(ask(AT_FDCWD, (const char *)a[0], (void *)a[1], 0));
    case SYS_lstat:
        return checked(ask(AT_FDCWD, (const char *)a[0], (void *)a[1], AT_SYMLINK_NOFOLLOW));
#endif
    default:
        return checked(kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]));
    }
}
