/* System calls as a libc answers them. */
#ifndef BF_ANSWER_H
#define BF_ANSWER_H

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
