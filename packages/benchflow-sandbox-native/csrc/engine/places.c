/*
 * Find the addresses at which SQLite stores the device and inode number of its open databases, in
 * the dumped memory of a process. The layouts are those of os_unix.c, SQLite 3.8 to 3.50:
 *
 *   unixInodeInfo   one for each database: its numbers, locks, and its number of references
 *   unixFile        one for each connection: a pointer to the unixInodeInfo, then the descriptor
 *
 * The memory comes from a sandbox and may be hostile. This follows no pointer out of the memory,
 * and limits the number of results. It reads the memory twice.
 */
#include "places.h"

#include <errno.h>
#include <stddef.h>

enum {
    CANDIDATES = 256,
    DEVICES = 8,
    MAX_COUNT = 1 << 20,
    METHODS = 16,
    SYSTEM = 8,
    FILE_LOCK = 12,
};

/* The offsets of the fields of a unixInodeInfo. */
struct layout {
    uint8_t mutex; /* 0 for a layout without a mutex */
    uint8_t shared, lock, process, references, memory, locks, unused, next, previous, size;
};

static const struct layout LAYOUTS[] = {
    {16, 24, 32, 33, 48, 56, 28, 40, 64, 72, 80}, /* since 3.24 */
    {0, 16, 20, 21, 24, 32, 40, 48, 56, 64, 72},
};

struct memory {
    const uint8_t *bytes;
    const struct span *spans;
    long count;
};

struct known {
    const struct number *numbers; /* in the order of device and inode */
    long count;
    uint64_t devices[DEVICES];
    long different;
};

struct candidate {
    uint64_t address;
    const struct number *number;
    uint32_t references, found, descriptor; /* found: the number of unixFiles that refer to it */
    uint8_t linked; /* its neighbours in the list point back to it */
    uint8_t strong; /* it has pointers, and not only small numbers */
};

static uint64_t wide(const uint8_t *at)
{
    uint64_t value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t narrow(const uint8_t *at)
{
    uint32_t value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
}

/* Return the bytes at an address of the process, or NULL. */
static const uint8_t *at(const struct memory *memory, uint64_t address, uint64_t size)
{
    const uint8_t *bytes = memory->bytes;
    for (long i = 0; i < memory->count; bytes += memory->spans[i++].size) {
        const struct span *span = &memory->spans[i];
        uint64_t offset = address - span->address;
        if (address >= span->address && offset < span->size)
            return size <= span->size - offset && address % 8 == 0 ? bytes + offset : NULL;
    }
    return NULL;
}

static int is_pointer(uint64_t value)
{
    return value >= 1 << 16 && value < (uint64_t)1 << 56 && value % 8 == 0;
}

static int may_point(uint64_t value)
{
    return value == 0 || is_pointer(value);
}

static int is_device(const struct known *known, uint64_t value)
{
    for (long i = 0; i < known->different; i++)
        if (known->devices[i] == value)
            return 1;
    return 0;
}

static const struct number *number_of(const struct known *known, uint64_t device, uint64_t inode)
{
    long low = 0, high = known->count;
    while (low < high) {
        long middle = low + (high - low) / 2;
        const struct number *number = &known->numbers[middle];
        if (number->device < device || (number->device == device && number->inode < inode))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == known->count || known->numbers[low].device != device)
        return NULL;
    return known->numbers[low].inode == inode ? &known->numbers[low] : NULL;
}

/* Return whether these bytes, which begin with known numbers, can be a unixInodeInfo in use. */
static int fits(const uint8_t *info, const struct layout *layout)
{
    uint32_t references = narrow(info + layout->references);
    uint64_t mutex = layout->mutex ? wide(info + layout->mutex) : 0;
    int counts = references >= 1 && references <= MAX_COUNT &&
                 narrow(info + layout->shared) <= MAX_COUNT &&
                 narrow(info + layout->locks) <= MAX_COUNT && info[layout->lock] <= 4 &&
                 info[layout->process] <= 1;
    int pads = narrow(info + layout->references + 4) == 0 && info[layout->process + 1] == 0 &&
               info[layout->process + 2] == 0;
    return counts && pads && (may_point(mutex) || mutex == 8) &&
           may_point(wide(info + layout->memory)) && may_point(wide(info + layout->unused)) &&
           may_point(wide(info + layout->next)) && may_point(wide(info + layout->previous));
}

static int points_back(const struct memory *memory, uint64_t neighbour, uint8_t field, uint64_t to)
{
    const uint8_t *back = neighbour == 0 ? NULL : at(memory, neighbour + field, 8);
    return neighbour == 0 || (back != NULL && wide(back) == to);
}

static struct candidate candidate_of(
    const struct memory *memory, uint64_t address, const uint8_t *info, const struct layout *layout)
{
    uint64_t next = wide(info + layout->next), previous = wide(info + layout->previous);
    return (struct candidate){
        .address = address,
        .references = narrow(info + layout->references),
        .linked = points_back(memory, next, layout->previous, address) &&
                  points_back(memory, previous, layout->next, address),
        .strong = next != 0 || previous != 0 || (layout->mutex && wide(info + layout->mutex) > 8),
    };
}

/* Add a candidate if the `left` bytes at `info`, which begin with known numbers, fit a layout. */
static long add_candidate(const struct memory *memory, const struct number *number,
    uint64_t address, const uint8_t *info, uint64_t left, struct candidate *candidates, long count)
{
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++) {
        if (left < LAYOUTS[i].size || !fits(info, &LAYOUTS[i]))
            continue;
        if (count == CANDIDATES)
            return -E2BIG;
        candidates[count] = candidate_of(memory, address, info, &LAYOUTS[i]);
        candidates[count].number = number;
        return count + 1;
    }
    return count;
}

static long find_candidates(
    const struct memory *memory, const struct known *known, struct candidate *candidates)
{
    const uint8_t *bytes = memory->bytes;
    long count = 0;
    for (long i = 0; i < memory->count; bytes += memory->spans[i++].size) {
        const struct span *span = &memory->spans[i];
        for (uint64_t at = 0; at + 16 <= span->size && count >= 0; at += 8) {
            uint64_t device = wide(bytes + at);
            if (device != known->devices[0] && (known->different == 1 || !is_device(known, device)))
                continue;
            const struct number *number = number_of(known, device, wide(bytes + at + 8));
            if (number != NULL)
                count = add_candidate(memory, number, span->address + at, bytes + at,
                    span->size - at, candidates, count);
        }
        if (count < 0)
            return count;
    }
    return count;
}

static struct candidate *candidate_at(struct candidate *candidates, long count, uint64_t address)
{
    long low = 0, high = count;
    while (low < high) {
        long middle = low + (high - low) / 2;
        if (candidates[middle].address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && candidates[low].address == address ? &candidates[low] : NULL;
}

/* Count a unixFile with a pointer to `candidate` at `field`, if its descriptor is of that file. */
static void count_reference(
    const struct known *known, struct candidate *candidate, const uint8_t *field)
{
    uint32_t descriptor = narrow(field + 8);
    if (!is_pointer(wide(field - METHODS)) || !is_pointer(wide(field - SYSTEM)) ||
        field[FILE_LOCK] > 4)
        return;
    const struct number *number = candidate->number, *end = known->numbers + known->count;
    for (; number < end && number->inode == candidate->number->inode &&
           number->device == candidate->number->device; number++) {
        if (number->descriptor == descriptor) {
            candidate->descriptor = descriptor;
            candidate->found++;
            return;
        }
    }
}

static void find_references(const struct memory *memory, const struct known *known,
    struct candidate *candidates, long count)
{
    const uint8_t *bytes = memory->bytes;
    uint64_t lowest = candidates[0].address, highest = candidates[count - 1].address;
    for (long i = 0; i < memory->count; bytes += memory->spans[i++].size) {
        for (uint64_t at = METHODS; at + 16 <= memory->spans[i].size; at += 8) {
            uint64_t value = wide(bytes + at);
            if (value < lowest || value > highest)
                continue;
            struct candidate *candidate = candidate_at(candidates, count, value);
            if (candidate != NULL)
                count_reference(known, candidate, bytes + at);
        }
    }
}

static long write_places(
    const struct candidate *candidates, long count, struct number *found, long room)
{
    long places = 0;
    for (const struct candidate *each = candidates; each < candidates + count; each++) {
        if (each->found == 0 && !(each->strong && each->linked))
            continue; /* bytes that only look like a unixInodeInfo */
        if (!each->linked || each->found < each->references)
            return -EAGAIN; /* a database is being opened or closed at this instant */
        if (places == room)
            return -E2BIG;
        found[places] = *each->number;
        found[places].descriptor = each->descriptor;
        found[places++].address = each->address;
    }
    return places;
}

static int collect_devices(struct known *known)
{
    for (long i = 0; i < known->count; i++) {
        if (is_device(known, known->numbers[i].device))
            continue;
        if (known->different == DEVICES)
            return -E2BIG;
        known->devices[known->different++] = known->numbers[i].device;
    }
    return 0;
}

/*
 * Write the places to `found` and return their number. Return -EAGAIN if a structure is incomplete,
 * and -E2BIG if there are more than `room` places or too many candidates.
 *
 * `spans` are whole pages, sorted by address. `numbers` are the numbers of the files that the
 * process has open, sorted by device and inode.
 */
long bf_places(const uint8_t *bytes, const struct span *spans, long span_count,
    const struct number *numbers, long number_count, struct number *found, long room)
    __attribute__((visibility("default")));
long bf_places(const uint8_t *bytes, const struct span *spans, long span_count,
    const struct number *numbers, long number_count, struct number *found, long room)
{
    struct candidate candidates[CANDIDATES];
    struct memory memory = {bytes, spans, span_count};
    struct known known = {.numbers = numbers, .count = number_count};
    if (number_count == 0)
        return 0;
    if (collect_devices(&known) < 0)
        return -E2BIG;
    long count = find_candidates(&memory, &known, candidates);
    if (count <= 0)
        return count;
    find_references(&memory, &known, candidates, count);
    return write_places(candidates, count, found, room);
}
