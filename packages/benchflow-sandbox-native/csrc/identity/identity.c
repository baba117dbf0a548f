/* Replace the identity of a file that the kernel reports. */
#include "identity.h"
#include "../kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>

static const char ATTRIBUTE[] = "security.bf.ino";
static const char DESCRIPTORS[] = "/proc/self/fd/";

/* The attribute that the host writes. */
struct pin {
    uint64_t seen;
    uint64_t valid[2]; /* raw numbers of this file; a copy with the attribute has another number */
};

static long attribute_at(const char *path, int follow, struct pin *pin)
{
    long call = follow ? SYS_getxattr : SYS_lgetxattr;
    return kernel(call, (long)path, (long)ATTRIBUTE, (long)pin, sizeof *pin, 0, 0);
}

/* Write "/proc/self/fd/FD/PATH"; return whether it fits. */
static int descriptor_path(char *out, size_t size, int fd, const char *path)
{
    char digits[12];
    size_t length = 0, count = 0;
    for (unsigned int rest = (unsigned int)fd; count == 0 || rest > 0; rest /= 10)
        digits[count++] = (char)('0' + rest % 10);
    for (const char *c = DESCRIPTORS; *c != '\0'; c++)
        out[length++] = *c;
    while (count > 0)
        out[length++] = digits[--count];
    if (*path != '\0')
        out[length++] = '/';
    for (; *path != '\0'; path++) {
        if (length + 1 >= size)
            return 0;
        out[length++] = *path;
    }
    out[length] = '\0';
    return 1;
}

static long attribute_of_descriptor(int fd, struct pin *pin)
{
    char path[sizeof DESCRIPTORS + 16];
    long got = kernel(SYS_fgetxattr, fd, (long)ATTRIBUTE, (long)pin, sizeof *pin, 0, 0);
    if (got != -EBADF) /* of a descriptor that was opened with O_PATH */
        return got;
    descriptor_path(path, sizeof path, fd, "");
    return attribute_at(path, 1, pin);
}

static long attribute_below(struct file_name file, struct pin *pin)
{
    char path[512]; /* the stack may be that of a signal handler */
    if (descriptor_path(path, sizeof path, file.fd, file.path))
        return attribute_at(path, file.follow, pin);
    int flags = O_PATH | O_CLOEXEC | (file.follow ? 0 : O_NOFOLLOW);
    long fd = kernel(SYS_openat, file.fd, (long)file.path, flags, 0, 0, 0);
    if (fd < 0)
        return fd;
    long got = attribute_of_descriptor((int)fd, pin);
    kernel(SYS_close, fd, 0, 0, 0, 0, 0);
    return got;
}

static long attribute(struct file_name file, struct pin *pin)
{
    if (file.fd == AT_FDCWD)
        return attribute_at(*file.path == '\0' ? "." : file.path, file.follow, pin);
    if (*file.path == '\0')
        return attribute_of_descriptor(file.fd, pin);
    if (*file.path == '/')
        return attribute_at(file.path, file.follow, pin);
    return attribute_below(file, pin);
}

/* The encoding of libc's dev_t. The library does not link libc's own functions. */
static uint64_t device_of(uint32_t major, uint32_t minor)
{
    return ((uint64_t)(major & 0xfffff000u) << 32) | ((uint64_t)(major & 0xfffu) << 8) |
           ((uint64_t)(minor & 0xffffff00u) << 12) | (minor & 0xffu);
}

static int anonymous(uint64_t device)
{
    return ((device >> 8) & 0xfffu) == 0 && (device >> 44) == 0;
}

/* Ask each time: a restored process has another root than before. */
static int on_root(uint64_t device)
{
    struct stat root;
    if (!anonymous(device))
        return 0; /* a disk; an overlay has an anonymous device */
    long answer = kernel(SYS_newfstatat, AT_FDCWD, (long)"/", (long)&root, 0, 0, 0);
    return answer == 0 && root.st_dev == device;
}

static uint64_t number_of(struct file_name file, uint64_t raw)
{
    struct pin pin;
    if (attribute(file, &pin) != (long)sizeof pin)
        return raw;
    return raw == pin.valid[0] || raw == pin.valid[1] ? pin.seen : raw;
}

void keep_identity(struct file_name file, struct stat *info)
{
    if (!on_root(info->st_dev))
        return;
    info->st_dev = device_of(CONSTANT_MAJOR, CONSTANT_MINOR);
    if (S_ISREG(info->st_mode))
        info->st_ino = number_of(file, info->st_ino);
}

void keep_identity_x(struct file_name file, struct statx *info)
{
    if (!on_root(device_of(info->stx_dev_major, info->stx_dev_minor)))
        return;
    info->stx_dev_major = CONSTANT_MAJOR;
    info->stx_dev_minor = CONSTANT_MINOR;
    unsigned int needed = STATX_TYPE | STATX_INO;
    if ((info->stx_mask & needed) == needed && S_ISREG(info->stx_mode))
        info->stx_ino = number_of(file, info->stx_ino);
}
