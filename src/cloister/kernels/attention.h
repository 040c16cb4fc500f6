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
#define MAX_QUERIES 16 /* query vectors (rows × heads of a group) that share one pass over a KV head's blocks */

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

static inline void widen(const uint16_t *from, float *to, int n) {
    for (int i = 0; i < n; i += WIDTH) store(to + i, load_bf16(from + i));
}

static inline void see_block(struct cursor *c, const float *q, const float *keys, const float *values, int dim, ints hidden) {
    lanes s0 = all(0.0f), s1 = s0, s2 = s0, s3 = s0;
    for (int d = 0; d < dim; d += 4) {
        s0 += load(keys + d * BLOCK) * q[d];
        s1 += load(keys + d * BLOCK + 16) * q[d + 1];
        s2 += load(keys + d * BLOCK + 32) * q[d + 2];
        s3 += load(keys + d * BLOCK + 48) * q[d + 3];
    }
    lanes s = pick(hidden, all(MINUS_INFINITY), (s0 + s1) + (s2 + s3));
    float top = maximum(s);
    if (top > c->top) {
        lanes shrink = all(exponential1(c->top - top));
        for (int i = 0; i < dim / WIDTH; i++) c->acc[i] *= shrink;
        c->total *= shrink;
        c->top = top;
    }
    lanes p = pick(hidden, all(0.0f), exponential(s - all(c->top)));
    c->total += p;
    float weight[BLOCK];
    store(weight, p);
    int i = 0;
    for (; i + 4 <= dim / WIDTH; i += 4) {
        lanes a = c->acc[i], b = c->acc[i + 1], d = c->acc[i + 2], e = c->acc[i + 3];
        for (int j = 0; j < BLOCK; j++) {
            const float *v = values + j * dim + i * WIDTH;
            a += load(v) * weight[j];
            b += load(v + 16) * weight[j];
            d += load(v + 32) * weight[j];
            e += load(v + 48) * weight[j];
        }
        c->acc[i] = a, c->acc[i + 1] = b, c->acc[i + 2] = d, c->acc[i + 3] = e;
    }
    for (; i < dim / WIDTH; i++)
        for (int j = 0; j < BLOCK; j++) c->acc[i] += load(values + j * dim + i * WIDTH) * weight[j];
}

/* One item: one tile of rows of one sequence, one KV head with all the query heads that share it. */
static void attend(const void *given, int item, int member) {
    const struct attention *job = given;
    int tile = item / job->kv_heads, kv = item % job->kv_heads, group = job->heads / job->kv_heads, dim = job->dim;
    int first = job->tile_row[tile], rows = job->tile_rows[tile], queries = rows * group;
    const int32_t *table = job->tables + (size_t)job->sequence[first] * job->table_stride;
    float wide_keys[MAX_DIM * BLOCK] __attribute__((aligned(64))), wide_values[MAX_DIM * BLOCK] __attribute__((aligned(64)));
    float q[MAX_QUERIES][MAX_DIM];
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
        if (job->bf16) {
            widen((const uint16_t *)job->keys + at, wide_keys, (int)head_size), keys = wide_keys;
            widen((const uint16_t *)job->values + at, wide_values, (int)head_size), values = wide_values;
        }
        ints where = LANE + b * BLOCK;
        for (int i = 0; i < queries; i++) {
            int position = job->position[first + i / group], start = job->window ? position - job->window + 1 : 0;
            if (b * BLOCK > position || b * BLOCK + BLOCK <= start) continue;
            see_block(&cursors[i], q[i], keys, values, dim, (where > position) | (where < start));
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
