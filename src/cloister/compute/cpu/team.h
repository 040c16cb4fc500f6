/* A team of threads that shares out the items of one job at a time.
 *
 * Items are taken from a counter, so a member the scheduler has put aside holds up nobody: the others take its share,
 * and the caller waits only for members that are inside the job. Which member computes an item never changes its
 * result. Members spin for a moment between jobs (a decode step is hundreds of short jobs), then sleep on a futex. */
#pragma once
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("isb" ::: "memory") /* waits as long as a pause does; `yield` does nothing on most */
#else
#define RELAX() sched_yield()
#endif

#define MAX_MEMBERS 256
#define SPINS 4000 /* some 60 µs: longer than the pause between two jobs of a step, shorter than that between steps */
#define OPEN (1u << 31)

typedef void (*item_fn)(const void *job, int item, int member);

static struct {
    int members; /* the calling thread is member 0 */
    int most;    /* how many of them take part */
    item_fn fn;
    const void *job;
    int items;
    atomic_int next;
    atomic_uint door;  /* OPEN while items may remain, plus how many helpers are inside */
    atomic_uint round; /* changes with every job: what helpers wait on */
    atomic_int asleep;
    atomic_int resting; /* helpers leave their cores to others until the next job */
} team = {.members = 1, .most = MAX_MEMBERS};

static _Thread_local int alone; /* this thread computes by itself: the team works for another */

static void take_items(int member) {
    for (int i; (i = atomic_fetch_add_explicit(&team.next, 1, memory_order_relaxed)) < team.items;)
        team.fn(team.job, i, member);
}

static int enter(void) {
    unsigned door = atomic_load_explicit(&team.door, memory_order_relaxed);
    while (door & OPEN)
        if (atomic_compare_exchange_weak_explicit(&team.door, &door, door + 1, memory_order_acquire, memory_order_relaxed))
            return 1;
    return 0;
}

static void *helper(void *number) {
    int member = (int)(intptr_t)number;
    for (unsigned seen = 0;;) {
        int spins = 0;
        unsigned now;
        while ((now = atomic_load_explicit(&team.round, memory_order_acquire)) == seen) {
            if (++spins < SPINS && !atomic_load_explicit(&team.resting, memory_order_relaxed)) {
                RELAX();
                continue;
            }
            atomic_fetch_add(&team.asleep, 1);
            syscall(SYS_futex, &team.round, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
            atomic_fetch_sub(&team.asleep, 1);
        }
        seen = now;
        if (member < team.most && enter()) {
            take_items(member);
            atomic_fetch_sub_explicit(&team.door, 1, memory_order_release);
        }
    }
    return NULL;
}

static int team_start(int members) {
    team.most = MAX_MEMBERS; /* what the process that forked us allowed itself is its own affair */
    if (team.members > 1 || members <= 1) return team.members;
    if (members > MAX_MEMBERS) members = MAX_MEMBERS;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    for (int i = 1; i < members; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attr, helper, (void *)(intptr_t)i)) break;
        team.members = i + 1;
    }
    pthread_attr_destroy(&attr);
    return team.members;
}

static void rest_team(void) { atomic_store_explicit(&team.resting, 1, memory_order_relaxed); }

/* Runs fn for every item and returns when all are done. Only one thread of the process that is not alone may call it at
 * a time. */
static void share_out(item_fn fn, const void *job, int items) {
    if (alone || team.members == 1 || team.most == 1 || items <= 1) {
        for (int i = 0; i < items; i++) fn(job, i, 0);
        return;
    }
    atomic_store_explicit(&team.resting, 0, memory_order_relaxed);
    team.fn = fn, team.job = job, team.items = items;
    atomic_store_explicit(&team.next, 0, memory_order_relaxed);
    atomic_store_explicit(&team.door, OPEN, memory_order_release);
    atomic_fetch_add(&team.round, 1);
    if (atomic_load(&team.asleep)) syscall(SYS_futex, &team.round, FUTEX_WAKE_PRIVATE, MAX_MEMBERS, NULL, NULL, 0);
    take_items(0);
    atomic_fetch_and_explicit(&team.door, ~OPEN, memory_order_acq_rel);
    for (int spins = 0; atomic_load_explicit(&team.door, memory_order_acquire); spins++)
        if (spins < 2000) RELAX();
        else sched_yield();
}
