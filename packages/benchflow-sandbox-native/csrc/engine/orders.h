/* The effect of the orders that an engine receives before its options. */
#ifndef BF_ORDERS_H
#define BF_ORDERS_H

#include <stddef.h>

/* clone3(2); create the sandbox in the group of order 'b', if there was one. */
long clone_into_group(const void *arguments, size_t size);

#endif
