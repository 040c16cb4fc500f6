/* Causal attention over a paged cache, one query at a time in exact arithmetic order.
 *
 * A cache block holds 16 positions of every KV head: keys as [head][dim][16], values as [head][16][dim]. A query walks
 * the blocks of a segment in order with a running maximum and sum (the online softmax), so its result depends on its
 * own keys alone: not on the batch, the chunking, or whether it is decoded or replayed. What it finds in a segment is
 * a part: the attention A over it, the largest score m, and the sum γ of the exponentials relative to m. Parts of
 * several segments, wherever they were computed, are merged as Petridish's Theorem 1 says with the shift of its §4.2.
 * The functions that fix the order of arithmetic are not inlined: every process runs the same instructions. */
#pragma once
#include "lanes.h"
#include "team.h"

#define BLOCK 16
#define MAX_DIM 256
#define GROUP 4        /* query vectors that take a key or value from the cache together */
#define MAX_QUERIES 128 /* query vectors (rows × heads of a group) that share one pass over a KV head's blocks */
#define SEGMENTS 3      /* public, private, generated */
#define EXACT static __attribute__((noinline))

struct segment {
    int32_t first;  /* where its blocks begin in the span's table */
    int32_t length; /* positions it holds at most */
    int32_t shift;  /* a row's position plus this is its place counted from the segment's start */
    int32_t rotated; /* whether queries are rotated on by the span's angles before they look here */
};

struct attention {
    const float *q; /* [row][head][dim] at q_stride, rotated */
    float *out;     /* [row][head][dim] */
    const void *keys, *values;
    const int32_t *tables; /* [span][table_stride]: block numbers */
    const int32_t *span, *position; /* per row */
    const int32_t *tile_row, *tile_rows; /* per tile: rows of one span, ascending positions */
    const struct segment *segments; /* [span][SEGMENTS]; the last of them that counts is the rows' own */
    const int32_t *counts; /* per span */
    const float *rotation_cosine, *rotation_sine; /* [span][rotary] */
    const int32_t *remote; /* per row: its place among the rows with a part elsewhere, or -1; NULL if there are none */
    float *parts; /* [remote row][2][head][dim + 2]: what such a row finds here, before and after the part elsewhere */
    size_t block; /* values from one block of a layer to the next */
    int tiles, heads, kv_heads, dim, q_stride, table_stride, window, bf16, rotary;
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

#if defined(__aarch64__)
/* score[n] = q[n] · keys, each of the sixteen in four chains that are added at the end. */
static inline __attribute__((always_inline)) void score_keys(const float (*q)[MAX_DIM], const void *keys, int dim,
                                                             float (*score)[BLOCK], const int count, const int bf16) {
    for (int key = 0; key < BLOCK; key += FOUR) {
        quad s[GROUP][FOUR], factors[GROUP];
        UNROLLED(n, count) UNROLLED(chain, FOUR) s[n][chain] = (quad){0};
        for (int d = 0; d < dim; d += FOUR) {
            UNROLLED(n, count) factors[n] = load_factors(q[n] + d);
            UNROLLED(chain, FOUR) {
                quad k = take_quad(keys, (d + chain) * BLOCK + key, bf16);
                UNROLLED(n, count) s[n][chain] += k * factors[n][chain];
            }
        }
        UNROLLED(n, count) {
            quad total = (s[n][0] + s[n][1]) + (s[n][2] + s[n][3]);
            store_quad(score[n] + key, total);
        }
    }
}

/* acc[n] += weight[n][j] × values[j], one j after the other. */
static inline __attribute__((always_inline)) void add_values(struct cursor *c, const float (*weight)[BLOCK], const void *values,
                                                             int dim, int filled, const int count, const int bf16) {
    float weights[BLOCK][GROUP] = {{0}};
    for (int j = 0; j < BLOCK; j++) UNROLLED(n, count) weights[j][n] = weight[n][j];
    for (int d = 0; d < dim; d += 4 * FOUR) {
        quad acc[GROUP][4];
        UNROLLED(n, count) UNROLLED(v, 4) acc[n][v] = load_quad((const float *)c[n].acc + d + v * FOUR);
        for (int j = 0; j < filled; j++) {
            quad factors = load_factors(weights[j]);
            UNROLLED(v, 4) {
                quad value = take_quad(values, j * dim + d + v * FOUR, bf16);
                UNROLLED(n, count) acc[n][v] += value * factors[n];
            }
        }
        UNROLLED(n, count) UNROLLED(v, 4) store_quad((float *)c[n].acc + d + v * FOUR, acc[n][v]);
    }
}

/* The scores' exponentials relative to the largest so far, 0 where hidden; what was summed before shrinks with a larger one. */
static inline void weigh(struct cursor *c, const float *score, const ints *hidden, int dim, float *weight) {
    quad shown[4];
    quad_ints hide[4];
    float *acc = (float *)c->acc, *total = (float *)&c->total;
    memcpy(hide, hidden, sizeof hide);
    UNROLLED(i, 4) shown[i] = PICK(quad, quad_ints, hide[i], (quad){0} + MINUS_INFINITY, load_quad(score + i * FOUR));
    float top = maximum(load((const float *)shown));
    if (top > c->top) {
        quad shrink = exponential_quad((quad){0} + (c->top - top));
        for (int d = 0; d < dim; d += FOUR) store_quad(acc + d, load_quad(acc + d) * shrink);
        UNROLLED(i, 4) store_quad(total + i * FOUR, load_quad(total + i * FOUR) * shrink);
        c->top = top;
    }
    UNROLLED(i, 4) {
        quad p = PICK(quad, quad_ints, hide[i], (quad){0}, exponential_quad(shown[i] - c->top));
        store_quad(total + i * FOUR, load_quad(total + i * FOUR) + p);
        store_quad(weight + i * FOUR, p);
    }
}
#else
/* Sixteen of a block's keys or values, wherever they are: fp32, or bf16 widened (exactly) as it is used. */
static inline __attribute__((always_inline)) lanes take(const void *from, int at, const int bf16) {
    return bf16 ? load_bf16((const uint16_t *)from + at) : load((const float *)from + at);
}

static inline __attribute__((always_inline)) void score_keys(const float (*q)[MAX_DIM], const void *keys, int dim,
                                                             float (*score)[BLOCK], const int count, const int bf16) {
    lanes s[GROUP][4];
    for (int n = 0; n < count; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = all(0.0f);
    for (int d = 0; d < dim; d += 4)
        for (int chain = 0; chain < 4; chain++) {
            lanes k = take(keys, (d + chain) * BLOCK, bf16);
            for (int n = 0; n < count; n++) s[n][chain] += k * q[n][d + chain];
        }
    for (int n = 0; n < count; n++) store(score[n], (s[n][0] + s[n][1]) + (s[n][2] + s[n][3]));
}

static inline __attribute__((always_inline)) void add_values(struct cursor *c, const float (*weight)[BLOCK], const void *values,
                                                             int dim, int filled, const int count, const int bf16) {
    int i = 0;
    for (; i + 4 <= dim / WIDTH; i += 4) {
        lanes acc[GROUP][4];
        for (int n = 0; n < count; n++)
            for (int v = 0; v < 4; v++) acc[n][v] = c[n].acc[i + v];
        for (int j = 0; j < filled; j++)
            for (int v = 0; v < 4; v++) {
                lanes value = take(values, j * dim + (i + v) * WIDTH, bf16);
                for (int n = 0; n < count; n++) acc[n][v] += value * weight[n][j];
            }
        for (int n = 0; n < count; n++)
            for (int v = 0; v < 4; v++) c[n].acc[i + v] = acc[n][v];
    }
    for (; i < dim / WIDTH; i++)
        for (int j = 0; j < filled; j++)
            for (int n = 0; n < count; n++) c[n].acc[i] += take(values, j * dim + i * WIDTH, bf16) * weight[n][j];
}

static inline void weigh(struct cursor *c, const float *score, const ints *hidden, int dim, float *weight) {
    lanes shown = pick(*hidden, all(MINUS_INFINITY), load(score));
    float top = maximum(shown);
    if (top > c->top) {
        lanes shrink = exponential(all(c->top - top));
        for (int i = 0; i < dim / WIDTH; i++) c->acc[i] *= shrink;
        c->total *= shrink;
        c->top = top;
    }
    lanes p = pick(*hidden, all(0.0f), exponential(shown - all(c->top)));
    c->total += p;
    store(weight, p);
}
#endif

/* `count` queries see one block; count and bf16 are constants where this is inlined. Lanes at and beyond `filled` are
 * never read as values: they may hold what another sequence left there. */
static inline __attribute__((always_inline)) void see_block(struct cursor *c, const float (*q)[MAX_DIM], const void *keys,
                                                            const void *values, int dim, const ints *hidden, int filled,
                                                            const int count, const int bf16) {
    float score[GROUP][BLOCK], weight[GROUP][BLOCK];
    score_keys(q, keys, dim, score, count, bf16);
    for (int n = 0; n < count; n++) weigh(c + n, score[n], hidden + n, dim, weight[n]);
    add_values(c, weight, values, dim, filled, count, bf16);
}

#define SEE_BLOCK(N, BF16)                                                                                              \
    static void see_block_##N##_##BF16(struct cursor *c, const float (*q)[MAX_DIM], const void *k, const void *v, int d, \
                                       const ints *h, int f) {                                                          \
        see_block(c, q, k, v, d, h, f, N, BF16);                                                                        \
    }
SEE_BLOCK(1, 0) SEE_BLOCK(2, 0) SEE_BLOCK(3, 0) SEE_BLOCK(4, 0)
SEE_BLOCK(1, 1) SEE_BLOCK(2, 1) SEE_BLOCK(3, 1) SEE_BLOCK(4, 1)
typedef void (*see_fn)(struct cursor *, const float (*)[MAX_DIM], const void *, const void *, int, const ints *, int);
static const see_fn SEE_BLOCKS[2][GROUP + 1] = {{0, see_block_1_0, see_block_2_0, see_block_3_0, see_block_4_0},
                                                {0, see_block_1_1, see_block_2_1, see_block_3_1, see_block_4_1}};

/* Rotates a head's first `rotary` values, halves against each other. */
EXACT void rotate(float *x, const float *cosine, const float *sine, int rotary) {
    int half = rotary / 2;
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i + half] + a * sine[i + half];
    }
}

struct pages {
    const void *keys, *values;
    const int32_t *blocks;
    size_t block;
    int dim, length, window, bf16;
};

/* `queries` queries, at ascending places, look at one KV head of one segment. */
EXACT void see_segment(const struct pages *pages, int kv, const float (*q)[MAX_DIM], const int32_t *place, int queries,
                       struct cursor *cursors) {
    float wide_keys[MAX_DIM * BLOCK] __attribute__((aligned(64))), wide_values[MAX_DIM * BLOCK] __attribute__((aligned(64)));
    int dim = pages->dim, window = pages->window;
    for (int i = 0; i < queries; i++) {
        for (int d = 0; d < dim / WIDTH; d++) cursors[i].acc[d] = all(0.0f);
        cursors[i].total = all(0.0f), cursors[i].top = MINUS_INFINITY;
    }
    int last = place[queries - 1] < pages->length ? place[queries - 1] : pages->length - 1;
    int from = window && place[0] >= window ? (place[0] - window + 1) / BLOCK : 0;
    size_t head_size = (size_t)BLOCK * dim, size = pages->bf16 ? 2 : 4;
    int widened = pages->bf16 && queries > GROUP; /* once for many groups of queries, as they go for one */
    const see_fn *see = SEE_BLOCKS[pages->bf16 && !widened];
    for (int b = from; b <= last / BLOCK; b++) {
        size_t at = (size_t)pages->blocks[b] * pages->block + kv * head_size;
        const char *keys = (const char *)pages->keys + at * size, *values = (const char *)pages->values + at * size;
        if (b < last / BLOCK) {
            size_t next = ((size_t)pages->blocks[b + 1] * pages->block + kv * head_size) * size;
            fetch_ahead((const char *)pages->keys + next, head_size * size);
            fetch_ahead((const char *)pages->values + next, head_size * size);
        }
        if (widened) {
            widen((const uint16_t *)keys, wide_keys, (int)head_size), keys = (const char *)wide_keys;
            widen((const uint16_t *)values, wide_values, (int)head_size), values = (const char *)wide_values;
        }
        ints where = LANE + b * BLOCK;
        for (int i = 0; i < queries; i += GROUP) {
            int count = queries - i < GROUP ? queries - i : GROUP, seen = 0;
            ints hidden[GROUP];
            for (int n = 0; n < count; n++) {
                int end = place[i + n] < pages->length ? place[i + n] : pages->length - 1;
                int start = window ? place[i + n] - window + 1 : 0;
                hidden[n] = ((end - where) | (where - start)) >> 31; /* all ones where its place is beyond either */
                seen |= b * BLOCK <= end && b * BLOCK + BLOCK > start;
            }
            int filled = last - b * BLOCK + 1 < BLOCK ? last - b * BLOCK + 1 : BLOCK;
            if (seen) see[count](cursors + i, q + i, keys, values, dim, hidden, filled);
        }
    }
}

/* What a cursor found, as a part: dim floats of A, then m and γ. Nothing seen: zeros and γ = 0. */
EXACT void leave_part(const struct cursor *cursor, int dim, float *part) {
    float total = sum(cursor->total);
    for (int d = 0; d < dim / WIDTH; d++) store(part + d * WIDTH, total > 0 ? cursor->acc[d] / total : all(0.0f));
    part[dim] = total > 0 ? cursor->top : 0.0f, part[dim + 1] = total;
}

/* Theorem 1 over any number of parts, in the order given. One that saw all there is to see is the result itself. */
EXACT void merge_parts(const float *const *parts, int count, int dim, float *out) {
    int seen = 0, only = 0;
    float top = MINUS_INFINITY, total = 0.0f, weight[SEGMENTS];
    for (int i = 0; i < count; i++)
        if (parts[i][dim + 1] > 0) seen++, only = i, top = parts[i][dim] > top ? parts[i][dim] : top;
    if (seen <= 1) {
        memcpy(out, parts[only], sizeof(float) * dim);
        return;
    }
    for (int i = 0; i < count; i++) {
        weight[i] = parts[i][dim + 1] > 0 ? parts[i][dim + 1] * exponential(all(parts[i][dim] - top))[0] : 0.0f;
        total += weight[i];
    }
    for (int d = 0; d < dim; d += WIDTH) {
        lanes sum = all(0.0f);
        for (int i = 0; i < count; i++) sum += load(parts[i] + d) * (weight[i] / total);
        store(out + d, sum);
    }
}

#define PART (MAX_DIM + WIDTH) /* floats of a part on the stack */

/* One item: one tile of rows of one span, one KV head with all the query heads that share it. */
static void attend(const void *given, int item, int member) {
    const struct attention *job = given;
    int tile = item / job->kv_heads, kv = item % job->kv_heads, group = job->heads / job->kv_heads, dim = job->dim;
    int first = job->tile_row[tile], rows = job->tile_rows[tile], queries = rows * group, span = job->span[first];
    int count = job->counts[span];
    float q[MAX_QUERIES][MAX_DIM] __attribute__((aligned(64)));
    float found[SEGMENTS][MAX_QUERIES][PART] __attribute__((aligned(64)));
    struct cursor cursors[MAX_QUERIES];
    int32_t place[MAX_QUERIES];
    for (int s = 0; s < count; s++) {
        const struct segment *segment = job->segments + (size_t)span * SEGMENTS + s;
        struct pages pages = {job->keys, job->values, job->tables + (size_t)span * job->table_stride + segment->first,
                              job->block, dim, segment->length, job->window, job->bf16};
        for (int i = 0; i < queries; i++) {
            int row = first + i / group, head = kv * group + i % group;
            memcpy(q[i], job->q + (size_t)row * job->q_stride + head * dim, sizeof(float) * dim);
            if (segment->rotated)
                rotate(q[i], job->rotation_cosine + (size_t)span * job->rotary, job->rotation_sine + (size_t)span * job->rotary, job->rotary);
            for (int d = 0; d < dim; d++) q[i][d] *= job->scale;
            place[i] = job->position[row] + segment->shift;
        }
        see_segment(&pages, kv, q, place, queries, cursors);
        for (int i = 0; i < queries; i++) leave_part(cursors + i, dim, found[s][i]);
    }
    for (int i = 0; i < queries; i++) {
        int row = first + i / group, head = kv * group + i % group, remote = job->remote ? job->remote[row] : -1;
        const float *parts[SEGMENTS];
        for (int s = 0; s < count; s++) parts[s] = found[s][i];
        if (remote < 0) {
            merge_parts(parts, count, dim, job->out + ((size_t)row * job->heads + head) * dim);
            continue;
        }
        /* The rows' own segment comes after the part elsewhere, a public span before it. */
        for (int side = 0; side < 2; side++) {
            float *to = job->parts + (((size_t)remote * 2 + side) * job->heads + head) * (dim + 2);
            const float *from = side ? parts[count - 1] : count > 1 ? parts[0] : NULL;
            if (from) memcpy(to, from, sizeof(float) * (dim + 2));
            else memset(to, 0, sizeof(float) * (dim + 2));
        }
    }
}
