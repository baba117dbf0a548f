/*
 * Finds where SQLite keeps the device and inode number of its open databases, in the memory of
 * a process that was written down. The layouts are those of os_unix.c, SQLite 3.8 to 3.50:
 *
 *   unixInodeInfo   one for each database: its numbers, locks, and how many refer to it
 *   unixFile        one for each connection: the unixInodeInfo, and the descriptor after it
 *
 * The memory is a box's, and may hold anything. Nothing of it is followed but within itself, and
 * what is found is at most as much as there is room for. The time is that of two readings.
 */
#include "places.h"

#include <errno.h>
#include <stddef.h>

enum { CANDIDATES = 256, DEVICES = 8, MOST = 1 << 20, METHODS = 16, SYSTEM = 8, FILE_LOCK = 12 };

/* Where the fields of a unixInodeInfo are. */
struct layout {
    uint8_t mutex; /* 0 when there is none */
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
    uint32_t wanted, found, descriptor;
    uint8_t linked; /* its neighbours in the list know it */
    uint8_t strong; /* it holds more than small numbers */
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

/* Whether these bytes, which begin with known numbers, can be a unixInodeInfo that is used. */
static int fits(const uint8_t *info, const struct layout *layout)
{
    uint32_t references = narrow(info + layout->references);
    uint64_t mutex = layout->mutex ? wide(info + layout->mutex) : 0;
    int counts = references >= 1 && references <= MOST && narrow(info + layout->shared) <= MOST &&
                 narrow(info + layout->locks) <= MOST && info[layout->lock] <= 4 &&
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

static struct candidate look(
    const struct memory *memory, uint64_t address, const uint8_t *info, const struct layout *layout)
{
    uint64_t next = wide(info + layout->next), previous = wide(info + layout->previous);
    return (struct candidate){
        .address = address,
        .wanted = narrow(info + layout->references),
        .linked = points_back(memory, next, layout->previous, address) &&
                  points_back(memory, previous, layout->next, address),
        .strong = next != 0 || previous != 0 || (layout->mutex && wide(info + layout->mutex) > 8),
    };
}

/* The numbers at `info` are known, and `left` bytes are there: note what can be a unixInodeInfo. */
static long consider(const struct memory *memory, const struct number *number, uint64_t address,
    const uint8_t *info, uint64_t left, struct candidate *candidates, long count)
{
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++) {
        if (left < LAYOUTS[i].size || !fits(info, &LAYOUTS[i]))
            continue;
        if (count == CANDIDATES)
            return -E2BIG;
        candidates[count] = look(memory, address, info, &LAYOUTS[i]);
        candidates[count].number = number;
        return count + 1;
    }
    return count;
}

static long first_reading(
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
                count = consider(memory, number, span->address + at, bytes + at, span->size - at,
                    candidates, count);
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

/* Count a unixFile that has `candidate` at `field`, when its descriptor is of that very file. */
static void refer(const struct known *known, struct candidate *candidate, const uint8_t *field)
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

static void second_reading(const struct memory *memory, const struct known *known,
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
                refer(known, candidate, bytes + at);
        }
    }
}

static long verdict(const struct candidate *candidates, long count, struct number *found, long room)
{
    long places = 0;
    for (const struct candidate *one = candidates; one < candidates + count; one++) {
        if (one->found == 0 && !(one->strong && one->linked))
            continue; /* bytes that look like one, and nobody's */
        if (!one->linked || one->found < one->wanted)
            return -EAGAIN; /* a database is being opened or closed at this instant */
        if (places == room)
            return -E2BIG;
        found[places] = *one->number;
        found[places].descriptor = one->descriptor;
        found[places++].address = one->address;
    }
    return places;
}

static int know(struct known *known)
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
 * Return how many places there are, at most `room` of which are written to `found`; or -EAGAIN
 * when something is half-made, or -E2BIG when there is more than SQLite can explain.
 *
 * `spans` are whole pages, in the order of their addresses; `numbers` are those of the files that
 * the process has open, in the order of device and inode.
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
    if (know(&known) < 0)
        return -E2BIG;
    long count = first_reading(&memory, &known, candidates);
    if (count <= 0)
        return count;
    second_reading(&memory, &known, candidates, count);
    return verdict(candidates, count, found, room);
}
