/*
 * Decode a request body. Every byte may be hostile: this reads no byte past the
 * announced length, limits every count, and requires that the body ends where it should.
 *
 * Integers are in host byte order: both ends run on one kernel.
 */
#include "bf_init.h"

#include <stdlib.h>
#include <string.h>

struct reader {
    char *at;
    size_t left;
    bool broken;
};

static void take(struct reader *reader, void *out, size_t size)
{
    if (reader->broken || reader->left < size) {
        reader->broken = true;
        memset(out, 0, size);
        return;
    }
    memcpy(out, reader->at, size);
    reader->at += size;
    reader->left -= size;
}

static uint32_t take_u32(struct reader *reader)
{
    uint32_t value;
    take(reader, &value, sizeof value);
    return value;
}

static uint64_t take_u64(struct reader *reader)
{
    uint64_t value;
    take(reader, &value, sizeof value);
    return value;
}

/* A NUL-terminated string inside the body, or NULL. */
static char *take_string(struct reader *reader)
{
    char *end = reader->broken ? NULL : memchr(reader->at, '\0', reader->left);
    if (end == NULL) {
        reader->broken = true;
        return NULL;
    }
    char *text = reader->at;
    reader->left -= (size_t)(end + 1 - text);
    reader->at = end + 1;
    return text;
}

static char **take_strings(struct reader *reader, uint32_t count)
{
    /* Each string has at least its NUL, so a count above the remaining bytes is wrong. */
    if (reader->broken || count > MAX_STRINGS || count > reader->left) {
        reader->broken = true;
        return NULL;
    }
    char **strings = calloc((size_t)count + 1, sizeof *strings);
    if (strings == NULL) {
        reader->broken = true;
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++)
        strings[i] = take_string(reader);
    return strings;
}

static bool finished(const struct reader *reader)
{
    return !reader->broken && reader->left == 0;
}

static uint32_t take_count(struct reader *reader, uint32_t limit)
{
    uint32_t count = take_u32(reader);
    if (count > limit) {
        reader->broken = true;
        return 0;
    }
    return count;
}

bool decode_spawn(char *body, size_t length, struct spawn_request *out)
{
    struct reader reader = {.at = body, .left = length};
    *out = (struct spawn_request){0};
    out->uid = take_u32(&reader);
    out->gid = take_u32(&reader);
    out->umask = take_u32(&reader);
    out->no_new_privileges = take_u32(&reader) != 0;
    out->group_count = take_count(&reader, MAX_GROUPS);
    out->rlimit_count = take_count(&reader, MAX_RLIMITS);
    uint32_t argument_count = take_u32(&reader);
    uint32_t variable_count = take_u32(&reader);
    for (uint32_t i = 0; i < out->group_count; i++)
        out->groups[i] = take_u32(&reader);
    for (uint32_t i = 0; i < out->rlimit_count; i++) {
        out->rlimits[i].resource = take_u32(&reader);
        out->rlimits[i].soft = take_u64(&reader);
        out->rlimits[i].hard = take_u64(&reader);
    }
    out->cwd = take_string(&reader);
    out->argv = take_strings(&reader, argument_count);
    out->envp = take_strings(&reader, variable_count);
    /* (uid_t)-1 means "unchanged" to the kernel: such a spawn would stay root. */
    bool valid = finished(&reader) && argument_count > 0 && out->argv[0][0] != '\0' &&
                 out->uid != UINT32_MAX && out->gid != UINT32_MAX && out->umask <= 0777;
    if (!valid)
        release_spawn(out);
    return valid;
}

void release_spawn(struct spawn_request *spawn)
{
    free(spawn->argv);
    free(spawn->envp);
    spawn->argv = NULL;
    spawn->envp = NULL;
}

bool decode_wait(const char *body, size_t length, uint32_t *pid)
{
    struct reader reader = {.at = (char *)body, .left = length};
    *pid = take_u32(&reader);
    return finished(&reader);
}

bool decode_kill(const char *body, size_t length, struct kill_request *out)
{
    struct reader reader = {.at = (char *)body, .left = length};
    out->pid = take_u32(&reader);
    out->signal = take_u32(&reader);
    out->group = take_u32(&reader) != 0;
    return finished(&reader);
}
