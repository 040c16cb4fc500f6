/* out = x · Wᵀ over weights packed in panels of 32 columns.
 *
 * Batch invariance by construction: an output element is one chain of accumulations over k = 0, 1, 2 … whatever the
 * number of rows, the tiling or the member that computes it. Padding adds exact zeros at the end of the chain.
 *
 * fp32 panel: [k][32].   bf16 panel: [k/32][2 tiles][16 pairs of k][16 columns][2], the layout of an AMX tile; without
 * AMX the same panel is read as pairs in the upper and lower halves of 32-bit lanes. On ARM: see neon.h. int8: see int8.h. */
#pragma once
#include "lanes.h"
#include "team.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PANEL 32
#define KBLOCK 32
#define ROWS 16    /* rows of one AMX tile */
#define AHEAD 4096 /* bytes between the weights being used and those being fetched */

enum format { FP32 = 0, BF16 = 1, INT8 = 2 };
enum epilogue { PLAIN = 0, ADD = 1, GATED_SILU = 2, GATED_GELU = 3 };

struct linear {
    const float *x; /* rows × k */
    const uint16_t *tiles; /* x as bf16 tiles [rows/16][k/32][16][32]; on ARM as floats [rows/4][k][4]; for int8 see there */
    const void *packed;
    const float *bias, *scale; /* per packed column; NULL without one, or if not int8 */
    float *out;
    int rows, k, columns, out_stride, epilogue, format, first_panel;
};

static inline int up_to(int n, int step) { return (n + step - 1) / step * step; }

static inline lanes silu(lanes g) { return g / (1.0f + exponential(-g)); }
static inline lanes gelu_tanh(lanes g) {
    lanes inner = 0.7978845608f * (g + 0.044715f * g * g * g);
    return g * (1.0f - 1.0f / (1.0f + exponential(2.0f * inner)));
}

/* A row of one panel leaves: bias, then plain, added to what is there (the residual), or gate × up in halves. */
static inline void leave(const struct linear *job, int row, int panel, lanes left, lanes right) {
    int column = panel * PANEL, gated = job->epilogue >= GATED_SILU;
    if (job->bias) left += load(job->bias + column), right += load(job->bias + column + WIDTH);
    if (gated) left = (job->epilogue == GATED_SILU ? silu(left) : gelu_tanh(left)) * right;
    float *out = job->out + (size_t)row * job->out_stride + (gated ? column / 2 : column);
    int room = job->columns - column;
    if (room >= PANEL || gated) {
        if (job->epilogue == ADD) left += load(out), right += load(out + WIDTH);
        store(out, left);
        if (!gated) store(out + WIDTH, right);
    } else {
        float edge[PANEL];
        store(edge, left), store(edge + WIDTH, right);
        for (int i = 0; i < room; i++) out[i] = job->epilogue == ADD ? edge[i] + out[i] : edge[i];
    }
}

static inline const uint16_t *bf16_weights(const struct linear *job, int index, int blocks) {
    return (const uint16_t *)job->packed + (size_t)index * blocks * KBLOCK * PANEL;
}

#if defined(__aarch64__)
#include "neon.h"
#define TILED(job) 1
#else
#define TILED(job) ((job)->format != FP32)
/* How many rows share a load of weights: as many sums as there are registers. A compiler keeps vectors in registers only
 * if the processor has such wide ones, so elsewhere than on AVX-512 a panel's 32 columns are eight quads. */
#if defined(__AVX512F__)
#define QUADS 2
typedef lanes quad;
#define FEW_ROWS 4
#define MANY_ROWS 8
#else
#define QUADS 8
typedef float quad __attribute__((vector_size(16)));
#define FEW_ROWS 2
#define MANY_ROWS 2
#endif
typedef uint32_t quad_bits __attribute__((vector_size(sizeof(quad))));
#define EACH_QUAD _Pragma("GCC unroll 8") for (int q = 0; q < QUADS; q++)
#define EACH_ROW(N) _Pragma("GCC unroll 8") for (int r = 0; r < N; r++)

static inline void leave_quads(const struct linear *job, int row, int panel, const quad *sums) {
    lanes left, right;
    memcpy(&left, sums, sizeof left), memcpy(&right, sums + QUADS / 2, sizeof right);
    leave(job, row, panel, left, right);
}

#define FP32_ROWS(N)                                                                                    \
    static inline void fp32_rows_##N(const struct linear *job, const float *panel, int row, int index) { \
        quad sums[N][QUADS], w[QUADS];                                                                  \
        memset(sums, 0, sizeof sums);                                                                   \
        const float *x = job->x + (size_t)row * job->k;                                                 \
        for (int k = 0; k < job->k; k++, panel += PANEL) {                                              \
            EACH_QUAD memcpy(&w[q], (const char *)panel + q * sizeof(quad), sizeof(quad));              \
            EACH_ROW(N) {                                                                               \
                float v = x[(size_t)r * job->k + k];                                                    \
                EACH_QUAD sums[r][q] += w[q] * v;                                                       \
            }                                                                                           \
        }                                                                                               \
        EACH_ROW(N) leave_quads(job, row + r, index, sums[r]);                                          \
    }
#if MANY_ROWS > FEW_ROWS
FP32_ROWS(8)
FP32_ROWS(4)
#else
FP32_ROWS(2)
#endif
FP32_ROWS(1)

static void fp32_panel(const void *given, int item, int member) {
    const struct linear *job = given;
    int index = job->first_panel + item;
    const float *panel = (const float *)job->packed + (size_t)index * job->k * PANEL;
    int row = 0;
#if MANY_ROWS > FEW_ROWS
    for (; row + 8 <= job->rows; row += 8) fp32_rows_8(job, panel, row, index);
    for (; row + 4 <= job->rows; row += 4) fp32_rows_4(job, panel, row, index);
#else
    for (; row + 2 <= job->rows; row += 2) fp32_rows_2(job, panel, row, index);
#endif
    for (; row < job->rows; row++) fp32_rows_1(job, panel, row, index);
}

#if defined(__AMX_TILE__)
static void configure_tiles(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int t = 0; t < 8; t++) shape.row_bytes[t] = 64, shape.rows[t] = 16;
    _tile_loadconfig(&shape);
}
#endif

#if defined(__AMX_BF16__)
/* Tiles 0–3 accumulate two row tiles × two column tiles; 4, 5 hold rows of x; 6, 7 weights. */
static void bf16_panel(const void *given, int item, int member) {
    const struct linear *job = given;
    int index = job->first_panel + item, blocks = up_to(job->k, KBLOCK) / KBLOCK;
    const uint16_t *panel = bf16_weights(job, index, blocks);
    float out[4][16 * 16] __attribute__((aligned(64)));
    configure_tiles();
    for (int row = 0; row < job->rows; row += 2 * ROWS) {
        int pair = job->rows - row > ROWS;
        const uint16_t *upper = job->tiles + (size_t)(row / ROWS) * blocks * 512, *lower = upper + (size_t)blocks * 512;
        const uint16_t *w = panel;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int b = 0; b < blocks; b++, w += 1024, upper += 512, lower += 512) {
            for (int line = 0; row == 0 && line < 2048; line += 64) __builtin_prefetch((const char *)w + AHEAD + line, 0, 2);
            _tile_loadd(6, w, 64);
            _tile_loadd(7, w + 512, 64);
            _tile_loadd(4, upper, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (pair) {
                _tile_loadd(5, lower, 64);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, out[0], 64);
        _tile_stored(1, out[1], 64);
        if (pair) {
            _tile_stored(2, out[2], 64);
            _tile_stored(3, out[3], 64);
        }
        for (int r = 0; r < 2 * ROWS && row + r < job->rows; r++) {
            int half = r / ROWS * 2, at = r % ROWS * 16;
            leave(job, row + r, index, load(out[half] + at), load(out[half + 1] + at));
        }
    }
    _tile_release();
}
#else
#define BF16_ROWS(N)                                                                                                   \
    static inline void bf16_rows_##N(const struct linear *job, const uint16_t *w, int blocks, int row, int index) {    \
        quad sums[N][QUADS], even[QUADS], odd[QUADS];                                                                  \
        const uint16_t *x = job->tiles + (size_t)(row / ROWS) * blocks * 512 + row % ROWS * 32;                        \
        memset(sums, 0, sizeof sums);                                                                                  \
        for (int b = 0; b < blocks; b++, w += 1024, x += 512)                                                          \
            for (int p = 0; p < 16; p++) {                                                                             \
                EACH_QUAD {                                                                                            \
                    quad_bits pairs;                                                                                   \
                    const char *half = (const char *)(w + (q >= QUADS / 2) * 512 + p * 32);                            \
                    memcpy(&pairs, half + q % (QUADS / 2) * sizeof(quad), sizeof(quad));                               \
                    even[q] = (quad)(pairs << 16), odd[q] = (quad)(pairs & 0xffff0000u);                               \
                }                                                                                                      \
                EACH_ROW(N) {                                                                                          \
                    uint32_t u0 = (uint32_t)x[r * 32 + 2 * p] << 16, u1 = (uint32_t)x[r * 32 + 2 * p + 1] << 16;       \
                    float v0, v1;                                                                                      \
                    memcpy(&v0, &u0, 4), memcpy(&v1, &u1, 4);                                                          \
                    EACH_QUAD sums[r][q] += even[q] * v0;                                                              \
                    EACH_QUAD sums[r][q] += odd[q] * v1;                                                               \
                }                                                                                                      \
            }                                                                                                          \
        EACH_ROW(N) leave_quads(job, row + r, index, sums[r]);                                                         \
    }
#if FEW_ROWS == 4
BF16_ROWS(4)
#else
BF16_ROWS(2)
#endif
BF16_ROWS(1)

static void bf16_panel(const void *given, int item, int member) {
    const struct linear *job = given;
    int index = job->first_panel + item, blocks = up_to(job->k, KBLOCK) / KBLOCK, row = 0;
    const uint16_t *panel = bf16_weights(job, index, blocks);
#if FEW_ROWS == 4
    for (; row + 4 <= job->rows; row += 4) bf16_rows_4(job, panel, blocks, row, index);
#else
    for (; row + 2 <= job->rows; row += 2) bf16_rows_2(job, panel, blocks, row, index);
#endif
    for (; row < job->rows; row++) bf16_rows_1(job, panel, blocks, row, index);
}
#endif

/* Sixteen rows of x become bf16 tiles; rows and k beyond the edge are zeros. */
static void tile_rows(const void *given, int index, int member) {
    const struct linear *job = given;
    int blocks = up_to(job->k, KBLOCK) / KBLOCK;
    uint16_t *tile = (uint16_t *)job->tiles + (size_t)index * blocks * 512;
    for (int r = 0; r < ROWS; r++) {
        int row = index * ROWS + r;
        const float *x = job->x + (size_t)row * job->k;
        for (int b = 0; b < blocks; b++) {
            uint16_t *to = tile + (size_t)b * 512 + r * 32;
            int have = job->k - b * KBLOCK;
            if (row >= job->rows) memset(to, 0, 64);
            else if (have >= KBLOCK) store_bf16(to, load(x + b * KBLOCK)), store_bf16(to + WIDTH, load(x + b * KBLOCK + WIDTH));
            else
                for (int i = 0; i < KBLOCK; i++) to[i] = i < have ? to_bf16(x[b * KBLOCK + i]) : 0;
        }
    }
}
#endif

#include "int8.h"

/* What the products need of x before the first panel. */
static void tile(const struct linear *job) {
    if (TILED(job)) share_out(job->format == INT8 ? quantise_rows : tile_rows, job, up_to(job->rows, ROWS) / ROWS);
}

static void panels(struct linear *job, int from, int to) {
    static const item_fn PANELS[] = {[FP32] = fp32_panel, [BF16] = bf16_panel, [INT8] = int8_panel};
    job->first_panel = from;
    share_out(PANELS[job->format], job, to - from);
}
