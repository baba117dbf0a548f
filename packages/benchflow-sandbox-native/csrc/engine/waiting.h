/* What an engine that waits is told, besides its options. */
#ifndef BF_WAITING_H
#define BF_WAITING_H

#include <stddef.h>

/* clone3(2); a box is born in the group that was told. */
long clone_at_birthplace(const void *given, size_t size);

#endif
