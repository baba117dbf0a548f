/* A sorted list of missing memory. The pager ends if it has no memory for the list. */
#include "pager.h"

#include <stdlib.h>
#include <string.h>

static void reserve(struct extents *set, size_t count)
{
    if (count <= set->room)
        return;
    size_t room = count * 2 + 16;
    struct extent *list = realloc(set->list, room * sizeof *list);
    if (list == NULL)
        end(EXIT_NO_MEMORY);
    set->list = list;
    set->room = room;
}

/* Return the index of the first extent that ends after `address`. */
static size_t first_after(const struct extents *set, uint64_t address)
{
    size_t low = 0, high = set->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->list[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(struct extents *set, size_t at, const struct extent *some, size_t count)
{
    reserve(set, set->count + count);
    memmove(set->list + at + count, set->list + at, (set->count - at) * sizeof *set->list);
    memcpy(set->list + at, some, count * sizeof *set->list);
    set->count += count;
}

static void remove_range(struct extents *set, size_t from, size_t to)
{
    memmove(set->list + from, set->list + to, (set->count - to) * sizeof *set->list);
    set->count -= to - from;
}

/* Split the extent that contains `address`; return the index of the first extent from there on. */
static size_t split(struct extents *set, uint64_t address)
{
    size_t at = first_after(set, address);
    if (at == set->count || set->list[at].start >= address)
        return at;
    struct extent rest = set->list[at];
    rest.offset += address - rest.start;
    rest.start = address;
    set->list[at].end = address;
    insert(set, at + 1, &rest, 1);
    return at + 1;
}

bool extents_append(struct extents *set, struct extent extent)
{
    if (set->count > 0 && extent.start < set->list[set->count - 1].end)
        return false;
    insert(set, set->count, &extent, 1);
    return true;
}

const struct extent *extents_at(const struct extents *set, uint64_t address)
{
    size_t at = first_after(set, address);
    return at < set->count && set->list[at].start <= address ? set->list + at : NULL;
}

void extents_cut(struct extents *set, uint64_t start, uint64_t end)
{
    if (start >= end)
        return;
    size_t from = split(set, start);
    remove_range(set, from, split(set, end));
}

void extents_exclude_from_fork(struct extents *set, uint64_t start, uint64_t end)
{
    if (start >= end)
        return;
    size_t from = split(set, start), to = split(set, end);
    for (size_t at = from; at < to; at++)
        set->list[at].not_forked = true;
}

void extents_move(struct extents *set, uint64_t from, uint64_t to, uint64_t size)
{
    extents_cut(set, to, to + size);
    size_t first = split(set, from), last = split(set, from + size);
    size_t count = last - first;
    if (count == 0)
        return;
    struct extent *moved = malloc(count * sizeof *moved);
    if (moved == NULL)
        end(EXIT_NO_MEMORY);
    memcpy(moved, set->list + first, count * sizeof *moved);
    remove_range(set, first, last);
    for (size_t at = 0; at < count; at++) {
        moved[at].start += to - from;
        moved[at].end += to - from;
    }
    insert(set, first_after(set, to), moved, count);
    free(moved);
}

void extents_inherit(struct extents *child, const struct extents *parent)
{
    reserve(child, parent->count);
    for (size_t at = 0; at < parent->count; at++)
        if (!parent->list[at].not_forked)
            child->list[child->count++] = parent->list[at];
}
