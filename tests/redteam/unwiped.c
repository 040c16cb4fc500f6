/* Aligned memory that free() leaves as it is, in place of glibc's, which it overwrites where `perturb` is set.
 *
 * torch's wheels for x86 take tensors from posix_memalign. Those for ARM take them from mimalloc, which no tunable of
 * glibc's reaches. A process with this library keeps the bytes of freed tensors on both. Everything else is glibc's.
 *
 * A small block waits behind many others before it is used again, so that what was left in it is there to be found.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

extern void *__libc_realloc(void *, size_t);
extern void *__libc_malloc(size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

#define ARENA ((size_t)16 << 30)
#define HEADER 64
#define CLASSES 40
#define WAITING(class) ((class) <= 10 ? 65536 : (class) <= 12 ? 4096 : (class) <= 16 ? 128 : 0)

/* In front of each block, so that nothing is written into one that is free. */
struct header {
    struct header *next;
    int class;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct header *first[CLASSES], *last[CLASSES];
static int waiting[CLASSES];
static char *begin, *used;

static struct header *of_arena(void *block) {
    return begin && (char *)block >= begin && (char *)block < begin + ARENA ? (struct header *)((char *)block - HEADER)
                                                                            : NULL;
}

static void *taken(size_t alignment, size_t size) {
    if (alignment > HEADER)
        return __libc_memalign(alignment, size);
    int class = 6;
    while (((size_t)1 << class) < size)
        class++;
    if (class >= CLASSES)
        return NULL;
    pthread_mutex_lock(&lock);
    if (!begin) {
        void *arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        begin = used = arena == MAP_FAILED ? NULL : arena;
    }
    struct header *found = waiting[class] > WAITING(class) ? first[class] : NULL;
    if (found) {
        first[class] = found->next;
        waiting[class]--;
    } else if (begin && (size_t)(begin + ARENA - used) >= HEADER + ((size_t)1 << class)) {
        found = (struct header *)used;
        used += HEADER + ((size_t)1 << class);
        found->class = class;
    }
    pthread_mutex_unlock(&lock);
    return found ? (char *)found + HEADER : NULL;
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    *block = taken(alignment, size);
    return *block ? 0 : ENOMEM;
}

void *aligned_alloc(size_t alignment, size_t size) { return taken(alignment, size); }

void *memalign(size_t alignment, size_t size) { return taken(alignment, size); }

void free(void *block) {
    struct header *mine = of_arena(block);
    if (!mine) {
        __libc_free(block);
        return;
    }
    pthread_mutex_lock(&lock);
    if (first[mine->class])
        last[mine->class]->next = mine;
    else
        first[mine->class] = mine;
    last[mine->class] = mine;
    mine->next = NULL;
    waiting[mine->class]++;
    pthread_mutex_unlock(&lock);
}

void *realloc(void *block, size_t size) {
    struct header *mine = of_arena(block);
    if (!mine)
        return __libc_realloc(block, size);
    size_t held = (size_t)1 << mine->class;
    void *moved = __libc_malloc(size);
    if (moved) {
        memcpy(moved, block, held < size ? held : size);
        free(block);
    }
    return moved;
}
