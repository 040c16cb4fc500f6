/* The link between the service and one vault: two pieces of shared memory, each written by one side only.
 *
 * A question carries the queries of one layer for some of the vault's slots; the answer carries, for each of them and
 * each head, the part the vault's keys and values contribute: A, m and γ (Petridish §4.2). Each side keeps its own
 * count of questions and copies what it was sent before it checks it, so that a peer that writes at the wrong moment
 * changes numbers, never addresses. Both sleep on a futex and are woken only if they said that they sleep. */
#pragma once
#include <errno.h>
#include <limits.h>
#include <time.h>
#include "attention.h"

#define LINK_MAGIC 0x4b4e4c43u /* "CLNK" */
#define LINK_VERSION 1u
#define CLOSED 0xffffffffu /* the number that ends a link; only the controller writes it */
#define LAST_NUMBER 0xfffffff0u
#define NAP_NS 50000000u
#define START 0xffffffffu /* instead of a layer: the rows' tokens are to be begun by the vault (start.h) */

enum verdict { FINE = 0, VAULT_LOST = 1, VAULT_LATE = 2, LINK_MALFORMED = 3 };

struct link_shape {
    uint32_t magic, version, heads, dim, layers, capacity;
};

struct ask_row {
    int32_t slot, index; /* whose keys, and how many generated tokens stand before this query */
};

/* The head of either piece, followed by its rows. */
struct question {
    struct link_shape shape;
    _Alignas(64) atomic_uint number; /* of the newest question; what the vault sleeps on */
    uint32_t layer, rows;
    _Alignas(64) atomic_uint waiting; /* the service sleeps, or is about to */
    atomic_uint closed; /* the controller ended the link: a vault that is being killed may still answer over CLOSED */
    _Alignas(64) struct ask_row row[]; /* [capacity], then the queries [capacity][heads][dim] */
};

struct reply {
    struct link_shape shape;
    _Alignas(64) atomic_uint number; /* of the newest question answered; what the service sleeps on */
    uint32_t status, rows;
    _Alignas(64) atomic_uint asleep; /* the vault sleeps, or is about to */
    _Alignas(64) float part[]; /* [capacity][heads][dim + 2] */
};

static inline float *queries_of(const struct question *q, uint32_t capacity) { return (float *)(q->row + capacity); }

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_on(const atomic_uint *word, unsigned value, uint64_t ns) {
    struct timespec limit = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

static void wake(const atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

static inline unsigned after(unsigned number) { return number >= LAST_NUMBER ? 1 : number + 1; }

/* ---- the service's side ---- */

struct asked {
    struct question *question;
    const struct reply *reply;
    const int32_t *row; /* rows of the batch */
    const struct ask_row *ask;
    uint32_t number, rows, capacity, verdict;
    uint64_t patience_ns; /* how much longer this step may stand still for this vault */
};

struct asking {
    struct asked **links;
    int count;
    uint64_t waited_ns; /* for the answers to the newest questions, so far */
};

/* Threads that wake each other take turns of this length: a woken vault goes before threads of the service that only
 * spin, but not before the one that is still waking the others. A kernel that knows no such turns leaves all as it is. */
static void take_short_turns(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {.size = 48, .runtime = 100000};
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static void post(struct asked *link, uint32_t layer) {
    link->question->layer = layer, link->question->rows = link->rows;
    link->number = after(link->number);
    atomic_store(&link->question->number, link->number);
}

static void wake_all(const struct asking *asking) {
    for (int i = 0; i < asking->count; i++) {
        const struct asked *link = asking->links[i];
        if (link->verdict == FINE && atomic_load(&link->reply->asleep)) wake(&link->question->number);
    }
}

/* Sends the queries of one layer to every vault of the batch: all of them first, then the waking, which costs more. */
static void ask(const struct attention *job, struct asking *asking, int layer) {
    size_t width = (size_t)job->heads * job->dim;
    asking->waited_ns = 0;
    for (int i = 0; i < asking->count; i++) {
        struct asked *link = asking->links[i];
        if (link->verdict != FINE) continue;
        struct question *question = link->question;
        float *to = queries_of(question, link->capacity);
        for (uint32_t r = 0; r < link->rows; r++) {
            question->row[r] = link->ask[r];
            memcpy(to + r * width, job->q + (size_t)link->row[r] * job->q_stride, sizeof(float) * width);
        }
        post(link, (uint32_t)layer);
    }
    wake_all(asking);
}

/* A row's parts were all numbers, and something was seen. Infinities times zero are not zero. */
static int sound(const float *part, int dim) {
    lanes zero = all(0.0f);
    for (int d = 0; d < dim; d += WIDTH) zero += load(part + d) * 0.0f;
    float m = part[dim], total = part[dim + 1];
    return sum(zero) == 0.0f && m - m == 0.0f && total >= 0.0f && total - total == 0.0f;
}

static void take_answer(const struct attention *job, struct asked *link) {
    int dim = job->dim, size = dim + 2;
    float part[MAX_DIM + WIDTH] __attribute__((aligned(64)));
    if (link->verdict == FINE && (link->reply->status != FINE || link->reply->rows != link->rows)) link->verdict = LINK_MALFORMED;
    for (uint32_t r = 0; r < link->rows; r++) {
        int row = link->row[r];
        for (int head = 0; head < job->heads; head++) {
            float *out = job->out + ((size_t)row * job->heads + head) * dim;
            const float *here = job->parts + ((size_t)job->remote[row] * 2 * job->heads + head) * size;
            if (link->verdict == FINE) {
                memcpy(part, link->reply->part + ((size_t)r * job->heads + head) * size, sizeof(float) * size);
                if (!sound(part, dim)) link->verdict = LINK_MALFORMED;
            }
            const float *parts[SEGMENTS] = {here, part, here + (size_t)job->heads * size};
            if (link->verdict == FINE) merge_parts(parts, SEGMENTS, dim, out);
            else memset(out, 0, sizeof(float) * dim);
        }
    }
}

/* Time counts against a vault's patience once, and only if it could have answered meanwhile: not what we compute before
 * we wait, and not what a nap takes beyond its limit, for then this machine stood still, and the vault with it. */
static void await(struct asked *link, struct asking *asking) {
    uint64_t stood = 0;
    for (int spins = 0;; spins++) {
        unsigned number = atomic_load(&link->reply->number);
        if (number == link->number) break;
        if (number == CLOSED || atomic_load(&link->question->closed)) {
            link->verdict = VAULT_LOST;
            break;
        }
        if (spins < 64) {
            RELAX();
            continue;
        }
        if (asking->waited_ns >= link->patience_ns) {
            link->verdict = VAULT_LATE;
            break;
        }
        uint64_t nap = link->patience_ns - asking->waited_ns, begun = now_ns();
        if (nap > NAP_NS) nap = NAP_NS;
        atomic_store(&link->question->waiting, 1);
        if (atomic_load(&link->reply->number) == number) sleep_on(&link->reply->number, number, nap);
        atomic_store(&link->question->waiting, 0);
        uint64_t took = now_ns() - begun;
        if (took > nap) took = nap;
        asking->waited_ns += took, stood += took;
    }
    link->patience_ns -= stood;
}

/* Waits for every vault that was asked. The last one asked answers last, most likely: waiting for it first, the others
 * need not wake us. */
static void await_all(struct asking *asking) {
    for (int i = asking->count - 1; i >= 0; i--)
        if (asking->links[i]->verdict == FINE) await(asking->links[i], asking);
}

static void take_answers(const struct attention *job, struct asking *asking) {
    for (int i = 0; i < asking->count; i++) take_answer(job, asking->links[i]);
}

/* ---- the vault's side ---- */

struct slot {
    atomic_int exposed;
    int32_t length, ahead, rotated; /* positions held; from a query's index to its place in them; see struct segment */
    atomic_int asked; /* one more than the greatest index that was asked */
    const int32_t *blocks;
    const float *cosine, *sine;
};

struct answering {
    const struct question *question;
    struct reply *reply;
    struct slot *slots;
    const char *keys, *values;
    size_t cache_bytes_per_layer, block; /* see struct attention */
    const float *scale; /* per layer */
    const int32_t *window;
    float *query; /* [heads][dim] */
    uint64_t *record; /* of what was asked: [slot_count][layers][recorded] */
    uint64_t key;
    struct starting *starting; /* NULL: no layer is private */
    int slot_count, heads, kv_heads, dim, layers, capacity, rotary, bf16, recorded;
    int event; /* a descriptor to write to when the loop ends */
    uint32_t number, verdict;
    atomic_uint started, busy;
    int first; /* the first layer that the service computes; below it, it may ask nothing */
};

static int start_rows(struct answering *self, uint32_t rows);

#define MERSENNE_61 ((1ull << 61) - 1)
#define ASKED (1ull << 63)

/* A polynomial in the vault's secret key over the query's bits, modulo 2^61 - 1 (Carter and Wegman 1979): two queries of
 * n numbers have one hash with a probability of n / 2^61. */
static uint64_t hash_query(const float *query, size_t numbers, uint64_t key) {
    uint64_t hash = 1;
    for (size_t i = 0; i < numbers; i++) {
        uint32_t bits;
        memcpy(&bits, query + i, sizeof bits);
        unsigned __int128 product = (unsigned __int128)hash * key + bits;
        hash = (uint64_t)(product & MERSENNE_61) + (uint64_t)(product >> 61);
        if (hash >= MERSENNE_61) hash -= MERSENNE_61;
    }
    return hash | ASKED;
}

/* Whether this query may be answered: the first at its layer and index, or the same once more. */
static int record_query(const struct answering *self, int layer, const struct ask_row *ask, const float *query) {
    struct slot *slot = self->slots + ask->slot;
    if (ask->index >= atomic_load(&slot->asked)) {
        if (self->first) return 0; /* a token that was not begun here has no queries */
        atomic_store(&slot->asked, ask->index + 1);
    }
    if (ask->index >= self->recorded) return 1; /* nor is the answer verified from here on (Verifying) */
    uint64_t hash = hash_query(query, (size_t)self->heads * self->dim, self->key);
    uint64_t *known = self->record + ((size_t)ask->slot * self->layers + layer) * self->recorded + ask->index;
    if (*known && *known != hash) return 0;
    *known = hash;
    return 1;
}

/* The vault computes an answer again: rows of the pass whose queries must be those that were asked. */
struct comparing {
    const int64_t *place; /* of each row: its slot and index, in the record of layer 0; -1: nothing to compare */
    const uint64_t *record;
    uint64_t key;
    int rows, recorded, first;
    uint32_t differing;
};

static _Thread_local struct comparing *comparing;

static void compare_queries(const struct attention *job, int layer) {
    if (layer < comparing->first) return;
    for (int row = 0; row < comparing->rows; row++) {
        if (comparing->place[row] < 0) continue;
        uint64_t hash = hash_query(job->q + (size_t)row * job->q_stride, (size_t)job->heads * job->dim, comparing->key);
        if (hash != comparing->record[comparing->place[row] + (int64_t)layer * comparing->recorded]) comparing->differing++;
    }
}

static int answer_row(const struct answering *self, int layer, const struct ask_row *ask, const float *asked, float *parts) {
    if (ask->slot < 0 || ask->slot >= self->slot_count || ask->index < 0 || ask->index > (1 << 28)) return 0;
    const struct slot *slot = self->slots + ask->slot;
    if (!atomic_load_explicit(&slot->exposed, memory_order_acquire)) return 0;
    if (!record_query(self, layer, ask, asked)) return 0; /* before the reply, which the service can read meanwhile */
    int dim = self->dim, group = self->heads / self->kv_heads;
    size_t offset = self->cache_bytes_per_layer * (size_t)layer;
    struct pages pages = {self->keys + offset, self->values + offset, slot->blocks, self->block, dim, slot->length,
                          self->window[layer], self->bf16};
    float q[MAX_QUERIES][MAX_DIM] __attribute__((aligned(64)));
    struct cursor cursors[MAX_QUERIES];
    int32_t place[MAX_QUERIES];
    for (int kv = 0; kv < self->kv_heads; kv++) {
        for (int i = 0; i < group; i++) {
            memcpy(q[i], asked + (size_t)(kv * group + i) * dim, sizeof(float) * dim);
            if (slot->rotated) rotate(q[i], slot->cosine, slot->sine, self->rotary);
            for (int d = 0; d < dim; d++) q[i][d] *= self->scale[layer];
            place[i] = ask->index + slot->ahead;
        }
        see_segment(&pages, kv, q, place, group, cursors);
        for (int i = 0; i < group; i++) leave_part(cursors + i, dim, parts + (size_t)(kv * group + i) * (dim + 2));
    }
    return 1;
}

static uint32_t answer_question(struct answering *self) {
    uint32_t layer = *(volatile const uint32_t *)&self->question->layer, rows = *(volatile const uint32_t *)&self->question->rows;
    if (rows < 1 || rows > (uint32_t)self->capacity) return LINK_MALFORMED;
    if (self->first && layer == START) return start_rows(self, rows);
    if (layer < (uint32_t)self->first || layer >= (uint32_t)self->layers) return LINK_MALFORMED;
    size_t width = (size_t)self->heads * self->dim;
    const float *queries = queries_of(self->question, (uint32_t)self->capacity);
    for (uint32_t r = 0; r < rows; r++) {
        struct ask_row ask;
        memcpy(&ask, self->question->row + r, sizeof ask);
        memcpy(self->query, queries + r * width, sizeof(float) * width); /* once: the service may write meanwhile */
        if (!answer_row(self, (int)layer, &ask, self->query, self->reply->part + r * (width + 2 * (size_t)self->heads)))
            return LINK_MALFORMED;
    }
    self->reply->rows = rows;
    return FINE;
}

/* Answers until the link is closed or a question is malformed. */
static void *answer_loop(void *given) {
    struct answering *self = given;
    take_short_turns();
    atomic_store(&self->started, 1);
    while (self->verdict == FINE) {
        unsigned number = atomic_load(&self->question->number);
        if (number == self->number) {
            atomic_store(&self->reply->asleep, 1);
            if (atomic_load(&self->question->number) == number) syscall(SYS_futex, &self->question->number, FUTEX_WAIT, number, NULL, NULL, 0);
            atomic_store(&self->reply->asleep, 0);
            continue;
        }
        if (number == CLOSED) break;
        atomic_store(&self->busy, 1); /* before it is looked whether a slot is exposed: see cloister_withdraw */
        self->verdict = number == after(self->number) ? answer_question(self) : LINK_MALFORMED;
        atomic_store(&self->busy, 0);
        self->number = number;
        self->reply->status = self->verdict;
        atomic_store(&self->reply->number, number);
        if (atomic_load(&self->question->waiting)) wake(&self->reply->number);
    }
    uint64_t one = 1;
    if (write(self->event, &one, sizeof one) < 0) _exit(3);
    return NULL;
}
