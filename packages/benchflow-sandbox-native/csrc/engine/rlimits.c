/*
 * bf-engine.so: lets CRIU read the limits of a process without CAP_SYS_RESOURCE.
 *
 * prlimit(2) refuses to tell the limits of another user's process to a root that lacks this
 * capability, as a root in a container or a micro VM often does. /proc tells them to
 * everybody. Loaded into CRIU, this answers from there when the kernel refuses.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

enum { SOFT = 26, HARD = 47, SHORTEST = 60, ARGUMENTS = 6 }; /* columns of the kernel's table */

struct limits {
    uint64_t soft;
    uint64_t hard;
};

static uint64_t value_at(const char *text)
{
    return *text == 'u' ? UINT64_MAX : strtoull(text, NULL, 10); /* "unlimited" */
}

/* One line per resource, in the order of their numbers, below a heading. */
static long from_proc(long pid, long resource, struct limits *out)
{
    char path[64], line[256];
    long answer = -1;
    snprintf(path, sizeof path, "/proc/%ld/limits", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    for (long number = -1; fgets(line, sizeof line, file) != NULL; number++) {
        if (number != resource || strlen(line) < SHORTEST)
            continue;
        *out = (struct limits){value_at(line + SOFT), value_at(line + HARD)};
        answer = 0;
    }
    fclose(file);
    return answer;
}

/* CRIU makes this call through the libc's general entry. */
long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long arguments[ARGUMENTS];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < ARGUMENTS; i++)
        arguments[i] = va_arg(list, long);
    va_end(list);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    long answer = real(number, arguments[0], arguments[1], arguments[2], arguments[3],
                       arguments[4], arguments[5]);
    if (number != SYS_prlimit64 || answer == 0 || errno != EPERM)
        return answer;
    struct limits *out = (struct limits *)arguments[3];
    int reads_another = arguments[0] != 0 && arguments[2] == 0 && out != NULL;
    return reads_another ? from_proc(arguments[0], arguments[1], out) : answer;
}
