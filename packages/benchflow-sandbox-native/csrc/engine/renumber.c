/*
 * Write the present numbers of files into restored processes, before they run. The file `places` in
 * CRIU's working directory has the addresses at which SQLite stores the old numbers; most sandboxes
 * do not have this file. When all numbers are written, `places` is deleted.
 */
#include "result.h"
#include "before_detach.h"
#include "places.h"
#include "proc.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>

static const char PLACES[] = "places";

static struct number *places; /* the process is 0 after the number is written */
static long count = -1, left; /* -1 until the file is read */

static int read_numbers(long pid, uint32_t descriptor, uint64_t numbers[2])
{
    struct stat info;
    char path[PROC_PATH];
    *put_number(proc_path(path, pid, "/fd/"), descriptor) = '\0';
    if (kernel(SYS_newfstatat, AT_FDCWD, (long)path, (long)&info, 0, 0, 0) < 0)
        return -1;
    numbers[0] = info.st_dev;
    numbers[1] = info.st_ino;
    return S_ISREG(info.st_mode) ? 0 : -1;
}

/* In a lazy restore the memory may be missing: this call then waits for the pager. */
static int exchange(long pid, const struct number *place)
{
    uint64_t present[2], numbers[2];
    const long size = sizeof numbers;
    struct iovec theirs = {(void *)place->address, sizeof numbers};
    struct iovec ours = {present, sizeof present};
    if (read_numbers(pid, place->descriptor, numbers) < 0)
        return -1;
    if (kernel(SYS_process_vm_readv, pid, (long)&ours, 1, (long)&theirs, 1, 0) != size)
        return -1;
    if (present[0] != place->device || present[1] != place->inode)
        return -1;
    ours.iov_base = numbers;
    return kernel(SYS_process_vm_writev, pid, (long)&ours, 1, (long)&theirs, 1, 0) == size ? 0 : -1;
}

int renumber(long pid)
{
    if (count < 0) {
        count = left = load_array(PLACES, sizeof *places, (void **)&places);
        if (count < 0)
            return -1;
    }
    if (left == 0)
        return 0;
    uint32_t process = inner_number(pid);
    if (process == 0)
        return -1;
    for (long i = 0; i < count; i++) {
        if (places[i].process != process)
            continue;
        if (exchange(pid, &places[i]) < 0)
            return -1;
        places[i].process = 0;
        if (--left == 0)
            return kernel(SYS_unlinkat, AT_FDCWD, (long)PLACES, 0, 0, 0, 0) < 0 ? -1 : 0;
    }
    return 0;
}
