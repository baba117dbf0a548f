/*
 * bf-pager: load the memory of a restored sandbox while the sandbox already runs.
 *
 * CRIU (restore --lazy-pages) does not restore private memory. It sends a userfaultfd of each
 * process to the pager (criu/uffd.c: over a stream socket a pid, then the descriptor, and 'RSTF' at
 * the end). The pager first loads pages that a process needs, then all others. After that the
 * sandbox does not need it.
 *
 * If no process has a userfaultfd open, its missing pages silently read as zeros. So a second
 * process, the guard, shares the pager's table of descriptors. If the pager dies, a process that
 * needs a page waits, until the launcher notices the death and kills the sandbox.
 */
#ifndef BF_PAGER_H
#define BF_PAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EXIT_TORN = 65, EXIT_LOST = 70, EXIT_NO_MEMORY = 71 };

/* Missing pages of one process. */
struct extent {
    uint64_t start;
    uint64_t end;
    uint64_t offset; /* in the file of pages */
    bool not_forked; /* a forked child does not get them: MADV_DONTFORK, MADV_WIPEONFORK */
};

/* Sorted by address, without overlap. */
struct extents {
    struct extent *list;
    size_t count;
    size_t room;
};

bool extents_append(struct extents *set, struct extent extent);
const struct extent *extents_at(const struct extents *set, uint64_t address);
void extents_cut(struct extents *set, uint64_t start, uint64_t end);
void extents_exclude_from_fork(struct extents *set, uint64_t start, uint64_t end);
void extents_move(struct extents *set, uint64_t from, uint64_t to, uint64_t size);
void extents_inherit(struct extents *child, const struct extents *parent);

/* One address space: of a process of the image, or of a child that it forked since. */
struct task {
    int faults; /* the userfaultfd */
    int pages;
    bool forked;
    struct extents missing;
};

void image_load(int directory, unsigned int pid, struct task *task);

struct task *tasks_add(void);
size_t tasks_count(void);
struct task *tasks_get(size_t number);
void tasks_remove(size_t number);

/* Return false if the address space is gone. */
bool task_handle(size_t number);
bool task_fill(size_t number);

struct engine {
    int listener;   /* -1 after CRIU has connected */
    int connection; /* -1 before CRIU has connected, and after its end */
    int32_t pid;    /* of the process whose descriptor comes next; 0 if a number comes next */
    int box;        /* a pidfd of the sandbox's first process, or -1 */
    bool finished;  /* the sandbox runs */
};

void engine_accept(struct engine *engine);
void engine_receive(struct engine *engine, int directory);

void confine(void);
void end(int status) __attribute__((noreturn));

#endif
