/* Causal attention over a paged cache, one query at a time in exact arithmetic order.
 *
 * A cache block holds 16 positions of every KV head: keys as [head][dim][16], values as [head][16][dim]. A query walks
 * the blocks of its sequence in order with a running maximum and sum (the online softmax), so its result depends on
 * its own keys alone: not on the batch, the chunking, or whether it is decoded or replayed. */
#pragma once
#include "lanes.h"
#include "team.h"

#define BLOCK 16
#define MAX_DIM 256
#define GROUP 4        /* query vectors that take a key or value from the cache together */
#define MAX_QUERIES 128 /* query vectors (rows × heads of a group) that share one pass over a KV head's blocks */

struct attention {
    const float *q; /* [row][head][dim] at q_stride */
    float *out;     /* [row][head][dim] */
    float *lse;     /* [row][head]: log-sum-exp of the scores, or NULL */
    const void *keys, *values;
    const int32_t *tables; /* [sequence][table_stride]: block numbers */
    const int32_t *sequence, *position; /* per row */
    const int32_t *tile_row, *tile_rows; /* per tile: rows of one sequence, ascending positions */
    int tiles, heads, kv_heads, dim, q_stride, table_stride, window, bf16;
    float scale;
};

struct cursor {
    lanes acc[MAX_DIM / WIDTH], total;
    float top;
};

/* The next block's lines are asked for while this one is computed: blocks lie anywhere, so the hardware cannot guess. */
static inline void fetch_ahead(const void *from, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch((const char *)from + line);
}

static inline void widen(const uint16_t *from, float *to, int n) {
    for (int i = 0; i < n; i += WIDTH) store(to + i, load_bf16(from + i));
}

/* `count` queries (a constant where it is inlined) see one block. Lanes at and beyond `filled` are never read as
 * values: they may hold what another sequence left there. */
static inline __attribute__((always_inline)) void see_block(struct cursor *c, const float (*q)[MAX_DIM], const float *keys,
                                                            const float *values, int dim, const ints *hidden, int filled,
                                                            const int count) {
    lanes s[GROUP][4];
    for (int n = 0; n < count; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = all(0.0f);
    for (int d = 0; d < dim; d += 4)
        for (int chain = 0; chain < 4; chain++) {
            lanes k = load(keys + (d + chain) * BLOCK);
            for (int n = 0; n < count; n++) s[n][chain] += k * q[n][d + chain];
        }
    float weight[GROUP][BLOCK];
    for (int n = 0; n < count; n++) {
        lanes score = pick(hidden[n], all(MINUS_INFINITY), (s[n][0] + s[n][1]) + (s[n][2] + s[n][3]));
        float top = maximum(score);
        if (top > c[n].top) {
            lanes shrink = exponential(all(c[n].top - top));
            for (int i = 0; i < dim / WIDTH; i++) c[n].acc[i] *= shrink;
            c[n].total *= shrink;
            c[n].top = top;
        }
        lanes p = pick(hidden[n], all(0.0f), exponential(score - all(c[n].top)));
        c[n].total += p;
        store(weight[n], p);
    }
    int i = 0;
    for (; i + 4 <= dim / WIDTH; i += 4) {
        lanes acc[GROUP][4];
        for (int n = 0; n < count; n++)
            for (int v = 0; v < 4; v++) acc[n][v] = c[n].acc[i + v];
        for (int j = 0; j < filled; j++)
            for (int v = 0; v < 4; v++) {
                lanes value = load(values + j * dim + (i + v) * WIDTH);
                for (int n = 0; n < count; n++) acc[n][v] += value * weight[n][j];
            }
        for (int n = 0; n < count; n++)
            for (int v = 0; v < 4; v++) c[n].acc[i + v] = acc[n][v];
    }
    for (; i < dim / WIDTH; i++)
        for (int j = 0; j < filled; j++)
            for (int n = 0; n < count; n++) c[n].acc[i] += load(values + j * dim + i * WIDTH) * weight[n][j];
}

static void see_block_1(struct cursor *c, const float (*q)[MAX_DIM], const float *k, const float *v, int d, const ints *h, int f) {
    see_block(c, q, k, v, d, h, f, 1);
}
static void see_block_2(struct cursor *c, const float (*q)[MAX_DIM], const float *k, const float *v, int d, const ints *h, int f) {
    see_block(c, q, k, v, d, h, f, 2);
}
static void see_block_3(struct cursor *c, const float (*q)[MAX_DIM], const float *k, const float *v, int d, const ints *h, int f) {
    see_block(c, q, k, v, d, h, f, 3);
}
static void see_block_4(struct cursor *c, const float (*q)[MAX_DIM], const float *k, const float *v, int d, const ints *h, int f) {
    see_block(c, q, k, v, d, h, f, 4);
}
typedef void (*see_fn)(struct cursor *, const float (*)[MAX_DIM], const float *, const float *, int, const ints *, int);
static const see_fn SEE_BLOCK[GROUP + 1] = {0, see_block_1, see_block_2, see_block_3, see_block_4};

/* One item: one tile of rows of one sequence, one KV head with all the query heads that share it. */
static void attend(const void *given, int item, int member) {
    const struct attention *job = given;
    int tile = item / job->kv_heads, kv = item % job->kv_heads, group = job->heads / job->kv_heads, dim = job->dim;
    int first = job->tile_row[tile], rows = job->tile_rows[tile], queries = rows * group;
    const int32_t *table = job->tables + (size_t)job->sequence[first] * job->table_stride;
    float wide_keys[MAX_DIM * BLOCK] __attribute__((aligned(64))), wide_values[MAX_DIM * BLOCK] __attribute__((aligned(64)));
    float q[MAX_QUERIES][MAX_DIM] __attribute__((aligned(64)));
    struct cursor cursors[MAX_QUERIES];
    for (int i = 0; i < queries; i++) {
        int row = first + i / group, head = kv * group + i % group;
        for (int d = 0; d < dim; d++) q[i][d] = job->q[(size_t)row * job->q_stride + head * dim + d] * job->scale;
        for (int d = 0; d < dim / WIDTH; d++) cursors[i].acc[d] = all(0.0f);
        cursors[i].total = all(0.0f), cursors[i].top = MINUS_INFINITY;
    }
    int last = job->position[first + rows - 1];
    int from = job->window && job->position[first] >= job->window ? (job->position[first] - job->window + 1) / BLOCK : 0;
    size_t head_size = (size_t)BLOCK * dim;
    for (int b = from; b <= last / BLOCK; b++) {
        size_t at = ((size_t)table[b] * job->kv_heads + kv) * head_size;
        const float *keys = (const float *)job->keys + at, *values = (const float *)job->values + at;
        if (b < last / BLOCK) {
            size_t size = job->bf16 ? 2 : 4, next = ((size_t)table[b + 1] * job->kv_heads + kv) * head_size * size;
            fetch_ahead((const char *)job->keys + next, head_size * size);
            fetch_ahead((const char *)job->values + next, head_size * size);
        }
        if (job->bf16) {
            widen((const uint16_t *)job->keys + at, wide_keys, (int)head_size), keys = wide_keys;
            widen((const uint16_t *)job->values + at, wide_values, (int)head_size), values = wide_values;
        }
        ints where = LANE + b * BLOCK;
        for (int i = 0; i < queries; i += GROUP) {
            int count = queries - i < GROUP ? queries - i : GROUP, seen = 0;
            ints hidden[GROUP];
            for (int n = 0; n < count; n++) {
                int position = job->position[first + (i + n) / group], start = job->window ? position - job->window + 1 : 0;
                hidden[n] = (where > position) | (where < start);
                seen |= b * BLOCK <= position && b * BLOCK + BLOCK > start;
            }
            int filled = last - b * BLOCK + 1 < BLOCK ? last - b * BLOCK + 1 : BLOCK;
            if (seen) SEE_BLOCK[count](cursors + i, q + i, keys, values, dim, hidden, filled);
        }
    }
    for (int i = 0; i < queries; i++) {
        int row = first + i / group, head = kv * group + i % group;
        float total = sum(cursors[i].total);
        float *out = job->out + ((size_t)row * job->heads + head) * dim;
        for (int d = 0; d < dim / WIDTH; d++) store(out + d * WIDTH, cursors[i].acc[d] / total);
        if (job->lse) job->lse[(size_t)row * job->heads + head] = cursors[i].top + __builtin_logf(total);
    }
}
