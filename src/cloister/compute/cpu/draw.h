/* One token from a row of logits, at u in [0, 1): temperature, then what top-k, top-p and min-p leave.
 *
 * Probabilities relative to the row's maximum become whole weights (units of 2^-44), so sums are exact in any order.
 * Without filters the cumulative distribution runs in order of token id; with filters in order of rank: the greater
 * probability first, the lower id among equals. To rank, tokens are counted by the leading bits of their probability;
 * only those above the last bucket that the filters can reach are sorted. */
#pragma once
#include "lanes.h"
#include "team.h"

#define BUCKET_SHIFT 19
#define BUCKETS ((0x3f800000 >> BUCKET_SHIFT) + 1) /* the bits of 1.0f, the greatest relative probability */
#define ONE 17592186044416.0f                      /* 2^44 */

struct draw {
    const float *logits;
    const float *temperature, *min_p;
    const double *top_p, *u;
    const int64_t *top_k; /* the whole width where top-k is off */
    int64_t *token;
    float *probabilities; /* scratch: members × width */
    uint64_t *ranked;     /* scratch: members × width */
    int rows, width;
};

/* Of a row of logits what `allowed` has a bit for, the lowest first: 64 tokens in each of its words, none beyond them. */
static void mask_row(float *row, const uint64_t *allowed, int words, int width) {
    for (int word = 0; 64 * word < width; word++) {
        uint64_t bits = word < words ? allowed[word] : 0;
        float *here = row + 64 * word;
        if (bits == ~(uint64_t)0) continue;
        for (int i = 0; i < 64; i += WIDTH) {
            ints on = ((all_ints((int32_t)(bits >> i & 0xffff)) >> LANE) & 1) != 0;
            store(here + i, bits ? pick(on, load(here + i), all(MINUS_INFINITY)) : all(MINUS_INFINITY));
        }
    }
}

static inline uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline int64_t weight_of(float probability) { return (int64_t)(probability * ONE); }

/* Ascending, in place: a heap sort, so that no input is slow. */
static void sort_keys(uint64_t *keys, int n) {
    for (int end = n, start = n / 2; end > 1;) {
        uint64_t key;
        if (start > 0) key = keys[--start];
        else key = keys[--end], keys[end] = keys[0];
        int hole = start;
        for (int child; (child = 2 * hole + 1) < end; hole = child) {
            if (child + 1 < end && keys[child + 1] > keys[child]) child++;
            if (keys[child] <= key) break;
            keys[hole] = keys[child];
        }
        keys[hole] = key;
    }
}

static int by_id(const float *p, int width, double u, int64_t total) {
    int64_t mark = (int64_t)(u * (double)total), mass = 0;
    if (mark > total - 1) mark = total - 1;
    for (int i = 0; i < width; i++)
        if ((mass += weight_of(p[i])) > mark) return i;
    return width - 1;
}

static int by_rank(const float *p, uint64_t *ranked, int width, int64_t k, double top_p, float min_p, double u, int64_t total) {
    int count[BUCKETS] = {0};
    int64_t mass[BUCKETS] = {0};
    for (int i = 0; i < width; i++) {
        uint32_t bucket = bits_of(p[i]) >> BUCKET_SHIFT;
        count[bucket]++, mass[bucket] += weight_of(p[i]);
    }
    /* How far down the filters can reach. With top-k, top-p is a part of the k best tokens' mass: then all k are ranked,
     * also those that min-p leaves out. */
    int64_t goal = (int64_t)__builtin_ceil(top_p * (double)total), seen = 0, heard = 0;
    int last = BUCKETS - 1, place[BUCKETS], unlikely = min_p > 0.0f ? (int)(bits_of(min_p) >> BUCKET_SHIFT) : -1;
    for (;; last--) {
        place[last] = (int)seen;
        seen += count[last], heard += mass[last];
        if (last == 0 || seen >= k || (k >= width && (heard >= goal || (seen && last <= unlikely)))) break;
    }
    for (int i = 0; i < width; i++) {
        uint32_t bits = bits_of(p[i]), bucket = bits >> BUCKET_SHIFT;
        if ((int)bucket >= last) ranked[place[bucket]++] = (uint64_t)~bits << 32 | (uint32_t)i;
    }
    for (int b = BUCKETS - 1; b >= last; b--)
        if (count[b] > 1) sort_keys(ranked + place[b] - count[b], count[b]);
#define RANKED_WEIGHT(n) weight_of(p[(uint32_t)ranked[n]])
    if (k < width) {
        total = 0;
        for (int n = 0; n < k; n++) total += RANKED_WEIGHT(n);
        goal = (int64_t)__builtin_ceil(top_p * (double)total);
    }
    if (goal > total) goal = total;
    int64_t left = 0, most = k < seen ? k : seen;
    for (int n = 0; n < most && (n == 0 || (left < goal && p[(uint32_t)ranked[n]] >= min_p)); n++) left += RANKED_WEIGHT(n);
    int64_t mark = (int64_t)(u * (double)left), sofar = 0;
    if (mark > left - 1) mark = left - 1;
    for (int n = 0; n < most; n++)
        if ((sofar += RANKED_WEIGHT(n)) > mark) return (int)(uint32_t)ranked[n];
    return (int)(uint32_t)ranked[0];
#undef RANKED_WEIGHT
}

static void draw_row(const void *given, int row, int member) {
    const struct draw *job = given;
    int width = job->width, i = 0;
    const float *logits = job->logits + (size_t)row * width;
    float *p = job->probabilities + (size_t)member * width, top = MINUS_INFINITY, temperature = job->temperature[row];
    lanes tops = all(MINUS_INFINITY);
    for (; i < width; i += WIDTH) tops = larger(load(logits + i), tops);
    top = maximum(tops);
    int64_t total = 0;
    for (i = 0; i < width; i += WIDTH) store(p + i, exponential((load(logits + i) - all(top)) / all(temperature)));
    for (i = 0; i < width; i++) {
        if (!(p[i] >= 0.0f && p[i] <= 1.0f)) p[i] = 0.0f; /* logits that are not numbers */
        total += weight_of(p[i]);
    }
    int filters = job->top_k[row] < width || job->top_p[row] < 1.0 || job->min_p[row] > 0.0f;
    job->token[row] = !filters ? by_id(p, width, job->u[row], total)
                               : by_rank(p, job->ranked + (size_t)member * width, width, job->top_k[row], job->top_p[row],
                                         job->min_p[row], job->u[row], total);
}
