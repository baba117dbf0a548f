/* Results of system calls in the form of a libc: -1 and errno on failure. */
#ifndef BF_RESULT_H
#define BF_RESULT_H

#include "../kernel.h"

#include <errno.h>

static inline long checked(long answer)
{
    if (answer >= 0 || answer < -4095)
        return answer;
    errno = (int)-answer;
    return -1;
}

#endif
