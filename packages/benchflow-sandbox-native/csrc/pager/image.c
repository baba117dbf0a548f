/*
 * Read the images of one process: pagemap-PID.img (the addresses of its pages), pages-ID.img (their
 * bytes) and mm-PID.img (the advice about forks). Their format is that of
 * criu/images/{pagemap,mm,vma}.proto: two magic numbers, then messages, each after its size. This
 * refuses a truncated image, and values that CRIU never writes: an image may come from a file.
 */
#include "pager.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    COMMON_MAGIC = 0x54564319,
    PAGEMAP_MAGIC = 0x56084025,
    MM_MAGIC = 0x57492820,
    MAX_IMAGE = 256 << 20,
    IN_PARENT = 1,
    LAZY = 2,
    PRESENT = 4,
    VARINT = 0,
    BYTES = 2,
};
#define NOT_FORKED (UINT64_C(1) << 10 | UINT64_C(1) << 18) /* MADV_DONTFORK, MADV_WIPEONFORK */
#define TOP (UINT64_C(1) << 56)                            /* above any address */

struct bytes {
    const uint8_t *at;
    const uint8_t *end;
};

struct field {
    uint64_t number;
    uint64_t value;
    struct bytes bytes;
};

static void need(bool valid)
{
    if (!valid)
        end(EXIT_TORN);
}

static int open_image(int directory, const char *kind, unsigned int number, uint64_t *size)
{
    char name[40];
    struct stat info;
    snprintf(name, sizeof name, "%s-%u.img", kind, number);
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    need(fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode));
    *size = (uint64_t)info.st_size;
    return fd;
}

static struct bytes read_image(int directory, const char *kind, unsigned int pid, uint32_t magic)
{
    uint64_t size;
    int fd = open_image(directory, kind, pid, &size);
    need(size >= 8 && size <= MAX_IMAGE);
    uint8_t *data = malloc(size);
    if (data == NULL)
        end(EXIT_NO_MEMORY);
    need(pread(fd, data, size, 0) == (ssize_t)size);
    close(fd);
    uint32_t found[2];
    memcpy(found, data, sizeof found);
    need(found[0] == COMMON_MAGIC && found[1] == magic);
    return (struct bytes){data + 8, data + size};
}

static bool next_message(struct bytes *image, struct bytes *message)
{
    if (image->at == image->end)
        return false;
    uint32_t size;
    need((size_t)(image->end - image->at) >= sizeof size);
    memcpy(&size, image->at, sizeof size);
    image->at += sizeof size;
    need((size_t)(image->end - image->at) >= size);
    *message = (struct bytes){image->at, image->at + size};
    image->at += size;
    return true;
}

static uint64_t varint(struct bytes *from)
{
    uint64_t value = 0;
    for (unsigned int shift = 0; shift < 64; shift += 7) {
        need(from->at < from->end);
        uint8_t byte = *from->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    end(EXIT_TORN);
}

static bool next_field(struct bytes *message, struct field *field)
{
    if (message->at == message->end)
        return false;
    uint64_t key = varint(message);
    *field = (struct field){.number = key >> 3};
    if ((key & 7) == VARINT) {
        field->value = varint(message);
        return true;
    }
    uint64_t size = (key & 7) == BYTES ? varint(message) : (key & 7) == 1 ? 8 : 4;
    need((key & 7) == BYTES || (key & 7) == 1 || (key & 7) == 5);
    need(size <= (uint64_t)(message->end - message->at));
    field->bytes = (struct bytes){message->at, message->at + size};
    message->at += size;
    return true;
}

/* The part of a file of pages without entries so far, and the lowest address of the next entry. */
struct rest {
    uint64_t offset;
    uint64_t size;
    uint64_t address;
};

/* Add the pages of one entry of a page map. */
static void add_pages(struct task *task, struct bytes message, struct rest *rest)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t start = 0, count = 0, flags = 0;
    struct field field;
    while (next_field(&message, &field)) {
        if (field.number == 1)
            start = field.value;
        else if ((field.number == 2 || field.number == 5) && field.value != 0)
            count = field.value;
        else if (field.number == 4)
            flags = field.value;
        need(field.number != 3 || field.value == 0); /* an older form of IN_PARENT */
    }
    need((flags & IN_PARENT) == 0 && (flags & PRESENT) != 0);
    need(start % page == 0 && start >= rest->address && start < TOP);
    need(count > 0 && count <= rest->size / page && count <= (TOP - start) / page);
    struct extent extent = {start, start + count * page, rest->offset, /* not_forked: */ false};
    if (flags & LAZY)
        need(extents_append(&task->missing, extent));
    *rest = (struct rest){rest->offset + count * page, rest->size - count * page, extent.end};
}

static void read_fork_advice(struct task *task, struct bytes message)
{
    uint64_t start = 0, end = 0, advice = 0;
    struct field field;
    while (next_field(&message, &field)) {
        if (field.number == 1)
            start = field.value;
        else if (field.number == 2)
            end = field.value;
        else if (field.number == 9)
            advice = field.value;
    }
    if (advice & NOT_FORKED)
        extents_exclude_from_fork(&task->missing, start, end);
}

void image_load(int directory, unsigned int pid, struct task *task)
{
    struct rest rest = {0};
    struct bytes message, image = read_image(directory, "pagemap", pid, PAGEMAP_MAGIC);
    struct field field;
    need(next_message(&image, &message) && next_field(&message, &field) && field.number == 1);
    need(field.value <= UINT32_MAX);
    task->pages = open_image(directory, "pages", (unsigned int)field.value, &rest.size);
    while (next_message(&image, &message))
        add_pages(task, message, &rest);
    image = read_image(directory, "mm", pid, MM_MAGIC);
    need(next_message(&image, &message));
    while (next_field(&message, &field))
        if (field.number == 14)
            read_fork_advice(task, field.bytes);
}
