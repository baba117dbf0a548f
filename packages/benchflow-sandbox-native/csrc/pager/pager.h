/*
 * bf-pager: gives a restored box its memory while it runs already.
 *
 * CRIU (restore --lazy-pages) leaves private memory out, and hands a userfaultfd of each process
 * to us (criu/uffd.c: over a stream socket a pid, then the descriptor, and 'RSTF' at the end).
 * Pages that are asked for come first, all others behind; then the box needs nobody any more.
 *
 * A missing page of a userfaultfd that nobody holds reads as zeros, without a word. So a second
 * process, the guard, shares our table of descriptors: if we die, those who need a page wait for
 * ever, until the launcher, which sees it, has killed the box.
 */
#ifndef BF_PAGER_H
#define BF_PAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { EXIT_TORN = 65, EXIT_LOST = 70, EXIT_NO_MEMORY = 71 };

/* Pages of one process that it does not have yet. */
struct extent {
    uint64_t start;
    uint64_t end;
    uint64_t offset; /* in its file of pages */
    bool own;        /* a forked child does not get it: MADV_DONTFORK, MADV_WIPEONFORK */
};

/* Sorted by address, and apart from each other. */
struct extents {
    struct extent *list;
    size_t count;
    size_t room;
};

bool extents_append(struct extents *set, struct extent extent);
const struct extent *extents_at(const struct extents *set, uint64_t address);
void extents_cut(struct extents *set, uint64_t start, uint64_t end);
void extents_keep(struct extents *set, uint64_t start, uint64_t end);
void extents_move(struct extents *set, uint64_t from, uint64_t to, uint64_t size);
void extents_inherit(struct extents *child, const struct extents *parent);

/* One memory: a process of the image, or one that was forked since. */
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

/* Return false when the memory is gone. */
bool task_listen(size_t number);
bool task_fill(size_t number);

struct engine {
    int listener;   /* -1 once it has called */
    int connection; /* -1 before that, and after its end */
    int32_t pid;    /* of the process whose descriptor comes next; 0 when a number is next */
    int box;        /* a pidfd of the box's first process, or -1 */
    bool finished;  /* the box runs */
};

void engine_accept(struct engine *engine);
void engine_hear(struct engine *engine, int directory);

void confine(void);
void end(int status) __attribute__((noreturn));

#endif
