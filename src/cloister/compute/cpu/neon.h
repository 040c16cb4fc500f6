/* The products of linear.h on ARM. Rows of x are transposed in fours: one load brings the factors of four rows, and a
 * multiplication takes one of them by its lane. An output is the chain of linear.h, fused: k = 0, 1, 2 …
 *
 * One or two rows take a panel's weights as they come. More take them from scratch, widened, a stretch of k at a time:
 * [8 columns][k][8]. What a row has summed up stays in memory from one stretch to the next. */
#pragma once
static inline quad as_weights(quad v, int format) {
    quad_bits u = (quad_bits)v;
    return format == FP32 ? v : (quad)((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u);
}

/* Four rows of x become [k][4], rounded to bf16 if the weights are; rows and k beyond the edge are zeros. */
static void tile_rows(const void *given, int index, int member) {
    const struct linear *job = given;
    int padded = up_to(job->k, KBLOCK);
    for (int row = index * ROWS; row < (index + 1) * ROWS && row < job->rows; row += FOUR) {
        float *to = (float *)job->tiles + (size_t)row * padded;
        for (int k = 0; k < padded; k += FOUR) {
            quad v[FOUR] = {{0}}, pairs[FOUR];
            for (int r = 0; r < FOUR && row + r < job->rows; r++) {
                const float *x = job->x + (size_t)(row + r) * job->k + k;
                if (k + FOUR <= job->k) v[r] = load_quad(x);
                else
                    for (int i = 0; k + i < job->k; i++) v[r][i] = x[i];
            }
            UNROLLED(r, FOUR) v[r] = as_weights(v[r], job->format);
            UNROLLED(r, 2) {
                pairs[r] = __builtin_shufflevector(v[r], v[r + 2], 0, 4, 1, 5);
                pairs[r + 2] = __builtin_shufflevector(v[r], v[r + 2], 2, 6, 3, 7);
            }
            UNROLLED(r, 2) {
                store_quad(to + (k + 2 * r) * FOUR, __builtin_shufflevector(pairs[2 * r], pairs[2 * r + 1], 0, 4, 1, 5));
                store_quad(to + (k + 2 * r + 1) * FOUR, __builtin_shufflevector(pairs[2 * r], pairs[2 * r + 1], 2, 6, 3, 7));
            }
        }
    }
}

/* bf16 weights of 2 × 4 columns' neighbours in k, widened: those at even k and those at odd k. */
static inline quad even(quad_halves pairs) {
    return (quad)__builtin_shufflevector((quad_halves){0}, pairs, 0, 8, 2, 10, 4, 12, 6, 14); /* a shift would have one pipe */
}
static inline quad odd(quad_halves pairs) { return (quad)((quad_bits)pairs & 0xffff0000u); }

static inline quad_halves load_pairs(const uint16_t *p) {
    quad_halves v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* bf16 weights lie in two streams, a kilobyte apart, which the hardware does not follow; fp32 ones in one. */
static inline void fetch(const void *weights) { __builtin_prefetch((const char *)weights + AHEAD); }

/* One or two rows by a whole panel. What is const is known where this is inlined. */
static inline __attribute__((always_inline)) void stream(const struct linear *job, const void *panel, int row,
                                                         float (*sums)[PANEL], const int rows) {
    int padded = up_to(job->k, KBLOCK);
    const float *x = (const float *)job->tiles + (size_t)row * padded;
    quad s[2][8];
    UNROLLED(r, rows) UNROLLED(q, 8) s[r][q] = (quad){0};
    if (job->format == FP32) {
        const float *w = panel;
        for (int k = 0; k < job->k; k++, w += PANEL, x += FOUR) {
            quad v = load_factors(x);
            UNROLLED(q, 8) {
                quad wide = load_quad(w + q * FOUR);
                UNROLLED(r, rows) s[r][q] += wide * v[r];
            }
        }
    } else {
        const uint16_t *w = panel;
        for (int k = 0; k < padded; k += KBLOCK, w += 512)
            for (int p = 0; p < KBLOCK / 2; p++, w += 32, x += 2 * FOUR) {
                fetch(w), fetch(w + 512);
                quad v = load_factors(x), next = load_factors(x + FOUR);
                UNROLLED(q, 8) {
                    quad_halves pairs = load_pairs(w + q / 4 * 512 + q % 4 * 8);
                    UNROLLED(r, rows) s[r][q] += even(pairs) * v[r];
                    UNROLLED(r, rows) s[r][q] += odd(pairs) * next[r];
                }
            }
    }
    UNROLLED(r, rows) UNROLLED(q, 8) store_quad(sums[r] + q * FOUR, s[r][q]);
}

#define STRETCH 128 /* of k: its weights, widened, are 16 KB */

/* The panel's weights from k on, `length` of them (a multiple of KBLOCK but at the end of fp32 weights). */
static void widen_stretch(const struct linear *job, const void *panel, int k, int length, float (*to)[STRETCH][8]) {
    if (job->format == FP32) {
        const float *w = (const float *)panel + (size_t)k * PANEL;
        for (int i = 0; i < length; i++, w += PANEL) UNROLLED(q, 4) memcpy(to[q][i], w + q * 8, sizeof to[q][i]);
        return;
    }
    const uint16_t *w = (const uint16_t *)panel + (size_t)k * PANEL;
    for (int i = 0; i < length; i += KBLOCK, w += 512)
        for (int p = 0; p < KBLOCK; p += 2, w += 32) {
            fetch(w), fetch(w + 512);
            UNROLLED(q, 8) {
                quad_halves pairs = load_pairs(w + q / 4 * 512 + q % 4 * 8);
                store_quad(to[q / 2][i + p] + q % 2 * FOUR, even(pairs));
                store_quad(to[q / 2][i + p + 1] + q % 2 * FOUR, odd(pairs));
            }
        }
}

#define TILE 12 /* rows by 8 columns, whose sums and factors the registers hold */

/* `rows` of them, at most a tile, go on by a stretch. */
static inline __attribute__((always_inline)) void go_on(const float *x, size_t next_rows, const float (*w)[8], int length,
                                                        float (*sums)[PANEL], const int rows) {
    quad s[TILE][2];
    UNROLLED(r, rows) UNROLLED(q, 2) s[r][q] = load_quad(sums[r] + q * FOUR);
    for (int i = 0; i < length; i++, x += FOUR) {
        quad v[TILE / FOUR], left = load_quad(w[i]), right = load_quad(w[i] + FOUR);
        UNROLLED(g, (rows + FOUR - 1) / FOUR) v[g] = load_factors(x + g * next_rows);
        UNROLLED(r, rows) s[r][0] += left * v[r / FOUR][r % FOUR], s[r][1] += right * v[r / FOUR][r % FOUR];
    }
    UNROLLED(r, rows) UNROLLED(q, 2) store_quad(sums[r] + q * FOUR, s[r][q]);
}

#define MANY (5 * TILE) /* rows whose sums are kept at once */

static void go_on_by(int rows, const float *x, size_t next_rows, const float (*w)[8], int length, float (*sums)[PANEL]) {
#define ROWS_OF(N) case N: return go_on(x, next_rows, w, length, sums, N);
    switch (rows) {
        ROWS_OF(1) ROWS_OF(2) ROWS_OF(3) ROWS_OF(4) ROWS_OF(5) ROWS_OF(6)
        ROWS_OF(7) ROWS_OF(8) ROWS_OF(9) ROWS_OF(10) ROWS_OF(11) default: ROWS_OF(TILE)
    }
#undef ROWS_OF
}

static void one_panel(const void *given, int item, int member) {
    const struct linear *job = given;
    int index = job->first_panel + item, padded = up_to(job->k, KBLOCK), end = job->format == FP32 ? job->k : padded;
    const void *panel = (const float *)job->packed + (size_t)index * job->k * PANEL;
    float sums[MANY][PANEL] __attribute__((aligned(64))), wide[4][STRETCH][8] __attribute__((aligned(64)));
    if (job->format != FP32) panel = bf16_weights(job, index, padded / KBLOCK);
    for (int row = 0; row < job->rows; row += MANY) {
        int rows = job->rows - row < MANY ? job->rows - row : MANY;
        if (rows == 1) stream(job, panel, row, sums, 1);
        else if (rows == 2) stream(job, panel, row, sums, 2);
        else memset(sums, 0, rows * sizeof *sums);
        for (int k = 0; rows > 2 && k < end; k += STRETCH) {
            int length = end - k < STRETCH ? end - k : STRETCH;
            const float *x = (const float *)job->tiles + (size_t)row * padded + k * FOUR;
            widen_stretch(job, panel, k, length, wide);
            for (int q = 0; q < 4; q++)
                for (int r = 0; r < rows; r += TILE)
                    go_on_by(rows - r < TILE ? rows - r : TILE, x + (size_t)r * padded, (size_t)padded * FOUR, wide[q], length,
                             (float(*)[PANEL])(sums[r] + q * 8));
        }
        for (int r = 0; r < rows; r++) leave(job, row + r, index, load(sums[r]), load(sums[r] + WIDTH));
    }
}
#define fp32_panel one_panel
#define bf16_panel one_panel
