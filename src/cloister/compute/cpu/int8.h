/* Products of int8 weights. Every value is defined here, once for all instruction sets:
 *
 *   weights  a scale sw for each column (compute/layer.py), values in -127 … 127
 *   rows     top = max(max|x|, 2^-100), over all k; sa = top / 32512; q = x · (32512 / top), rounded to nearest, ties to even;
 *            q = 256 · high + low, two rows of int8: high in -127 … 127, low in -128 … 127
 *   product  (256 · float(Σ high·w) + float(Σ low·w)) · (sw · sa). Both sums are integers, exact in any order and below 2^31
 *            (native.py bounds k); 256 times one is exact
 *
 * then bias and sum as in linear.h, never fused with the multiplication. A row that is not finite gives NaN.
 *
 * Panel: [k/4][32 columns][4], k padded to DEPTH with zeros: one stream, whose 64 bytes are a register of AVX-512 VNNI, a row
 * of an AMX tile, and four registers of NEON. x: [rows][high, low][k, padded the same way], then a struct for each row. */
#pragma once

#define DEPTH 64 /* of k: what an AMX tile takes */
#define LEAST 0x1p-100f
#define LARGEST 32512 /* 127 · 256 */

struct int8_row {
    float scale;
    int32_t high, low; /* sums over k: what an offset of the weights adds to a product */
};

static inline int8_t *int8_x(const struct linear *job) { return (int8_t *)job->tiles; }
static inline struct int8_row *int8_rows(const struct linear *job) {
    return (struct int8_row *)(int8_x(job) + (size_t)2 * up_to(job->rows, ROWS) * up_to(job->k, DEPTH));
}

/* Nearest integers, ties to even. Not by adding 1.5 · 2^23: where compilers fuse that with the multiplication, bits differ. */
static inline ints nearest(lanes v) {
    ints n;
#if defined(__AVX512F__)
    n = (ints)_mm512_cvtps_epi32((__m512)v);
#elif defined(__AVX2__)
    for (int i = 0; i < 2; i++) {
        __m256i half = _mm256_cvtps_epi32(_mm256_loadu_ps((const float *)&v + 8 * i));
        memcpy((char *)&n + 32 * i, &half, sizeof half);
    }
#elif defined(__aarch64__)
    for (int i = 0; i < 4; i++) vst1q_s32((int32_t *)&n + 4 * i, vcvtnq_s32_f32(vld1q_f32((const float *)&v + 4 * i)));
#else
    for (int i = 0; i < WIDTH; i++) n[i] = (int32_t)__builtin_rintf(v[i]);
#endif
    return n;
}

typedef int8_t bytes __attribute__((vector_size(16)));

static inline lanes load_some(const float *x, int have) {
    float v[WIDTH] = {0};
    if (have >= WIDTH) return load(x);
    memcpy(v, x, sizeof(float) * (size_t)(have > 0 ? have : 0));
    return load(v);
}

static inline int32_t largest_of(ints v) {
    int32_t most = 0;
    for (int i = 0; i < WIDTH; i++) most = v[i] > most ? v[i] : most;
    return most;
}

static inline int32_t total_of(ints v) {
    int32_t total = 0;
    for (int i = 0; i < WIDTH; i++) total += v[i];
    return total;
}

static inline void store_bytes(int8_t *to, ints v) {
    bytes b = __builtin_convertvector(v, bytes);
    memcpy(to, &b, sizeof b);
}

static void quantise_row(const float *x, int k, int padded, int8_t *to, struct int8_row *row) {
    ints most = all_ints(0), highs = most, lows = most;
    for (int i = 0; i < k; i += WIDTH) {
        ints size = (ints)load_some(x + i, k - i) & 0x7fffffff; /* in the order of their bits: NaN is the largest */
        most = PICK(ints, ints, size > most, size, most);
    }
    int32_t largest = largest_of(most);
    float top;
    memcpy(&top, &largest, 4);
    if (largest >= 0x7f800000) {
        memset(to, 0, 2 * (size_t)padded);
        *row = (struct int8_row){__builtin_nanf(""), 0, 0};
        return;
    }
    if (top < LEAST) top = LEAST;
    lanes factor = all(LARGEST / top);
    for (int i = 0; i < padded; i += WIDTH) {
        ints n = nearest(load_some(x + i, k - i) * factor), high = (n + 128) >> 8, low = n - (high << 8);
        store_bytes(to + i, high), store_bytes(to + padded + i, low);
        highs += high, lows += low;
    }
    *row = (struct int8_row){top / LARGEST, total_of(highs), total_of(lows)};
}

static void quantise_rows(const void *given, int item, int member) {
    const struct linear *job = given;
    int padded = up_to(job->k, DEPTH);
    for (int row = item * ROWS; row < (item + 1) * ROWS && row < job->rows; row++)
        quantise_row(job->x + (size_t)row * job->k, job->k, padded, int8_x(job) + (size_t)2 * row * padded, int8_rows(job) + row);
}

/* A rounded product: no compiler sees the multiplication behind it. */
static inline lanes settled(lanes v) {
    __asm__("" : "+m"(v));
    return v;
}

/* A row of one panel leaves: [2][PANEL] sums. `offset` was added to each weight. */
static inline void leave_numbers(const struct linear *job, int row, int panel, const int32_t (*sums)[PANEL], int offset) {
    const struct int8_row *of = int8_rows(job) + row;
    const float *scale = job->scale + panel * PANEL;
    lanes halves[2];
    for (int i = 0; i < 2; i++) {
        bits high, low;
        memcpy(&high, sums[0] + i * WIDTH, sizeof high), memcpy(&low, sums[1] + i * WIDTH, sizeof low);
        high -= (uint32_t)offset * (uint32_t)of->high, low -= (uint32_t)offset * (uint32_t)of->low;
        lanes product = __builtin_convertvector((ints)high, lanes) * 256.0f + __builtin_convertvector((ints)low, lanes);
        halves[i] = settled(product * (load(scale + i * WIDTH) * of->scale));
    }
    leave(job, row, panel, halves[0], halves[1]);
}

static inline const int8_t *int8_panel_of(const struct linear *job, int index) {
    return (const int8_t *)job->packed + (size_t)index * PANEL * up_to(job->k, DEPTH);
}

#if defined(__AMX_INT8__)
#define INT8_WITH "amx"
/* As bf16_panel: tiles 0–3 sum, 4 and 5 hold eight rows of x each, 6 and 7 weights. Beyond the last row is junk that no one reads. */
static void int8_panel(const void *given, int item, int member) {
    const struct linear *job = given;
    int index = job->first_panel + item, padded = up_to(job->k, DEPTH);
    int32_t out[4][16 * 16] __attribute__((aligned(64)));
    configure_tiles();
    for (int row = 0; row < job->rows; row += ROWS) {
        int pair = job->rows - row > ROWS / 2;
        const int8_t *w = int8_panel_of(job, index), *upper = int8_x(job) + (size_t)2 * row * padded, *lower = upper + (size_t)ROWS * padded;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int k = 0; k < padded; k += DEPTH, w += DEPTH * PANEL) {
            for (int line = 0; row == 0 && line < DEPTH * PANEL; line += 64) __builtin_prefetch(w + AHEAD + line, 0, 2);
            _tile_loadd(6, w, 128);
            _tile_loadd(7, w + 64, 128);
            _tile_loadd(4, upper + k, padded);
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            if (pair) {
                _tile_loadd(5, lower + k, padded);
                _tile_dpbssd(2, 5, 6);
                _tile_dpbssd(3, 5, 7);
            }
        }
        _tile_stored(0, out[0], 64);
        _tile_stored(1, out[1], 64);
        if (pair) {
            _tile_stored(2, out[2], 64);
            _tile_stored(3, out[3], 64);
        }
        for (int r = 0; r < ROWS && row + r < job->rows; r++) {
            int32_t sums[2][PANEL];
            for (int part = 0; part < 4; part++) /* high or low, left or right */
                memcpy(sums[part / 2] + part % 2 * 16, out[r / 8 * 2 + part % 2] + (r % 8 * 2 + part / 2) * 16, 64);
            leave_numbers(job, row + r, index, sums, 0);
        }
    }
    _tile_release();
}
#else
/* For each instruction set: a register of sums, of which a panel has PARTS; how weights are taken, perhaps with an offset;
 * and sums += four weights of a column times the j-th four of sixteen x. SPAN parts of MOST int8 rows fill the registers. */
#if defined(__AVX512VNNI__)
#define INT8_WITH "avx512-vnni"
typedef __m512i numbers;
typedef const int8_t *factors;
#define PARTS 2
#define SPAN 2
#define MOST 12
#define OFFSET 128 /* vpdpbusd multiplies unsigned by signed values */
static inline factors take_factors(const int8_t *x) { return x; }
static inline numbers take_weights(const int8_t *w) { return _mm512_xor_si512(_mm512_loadu_si512(w), _mm512_set1_epi8(-128)); }
static inline numbers dot(numbers sum, numbers w, factors x, const int j) {
    int32_t four;
    memcpy(&four, x + 4 * j, 4);
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(four));
}
#elif defined(__AVX2__)
typedef __m256i numbers;
typedef const int8_t *factors;
#define PARTS 4
#define SPAN 2
static inline factors take_factors(const int8_t *x) { return x; }
#if defined(__AVXVNNI__)
#define INT8_WITH "avx-vnni"
#define MOST 6
#define OFFSET 128
static inline numbers take_weights(const int8_t *w) {
    return _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)w), _mm256_set1_epi8(-128));
}
static inline numbers dot(numbers sum, numbers w, factors x, const int j) {
    int32_t four;
    memcpy(&four, x + 4 * j, 4);
    return _mm256_dpbusd_avx_epi32(sum, w, _mm256_set1_epi32(four));
}
#else
#define INT8_WITH "avx2"
#define MOST 4
#define OFFSET 0
static inline numbers take_weights(const int8_t *w) { return _mm256_loadu_si256((const __m256i *)w); }
/* |x| · (w with x's sign): two such products fit 16 bits, where x with an offset times w would not. No w is -128. */
static inline numbers dot(numbers sum, numbers w, factors x, const int j) {
    int32_t four;
    memcpy(&four, x + 4 * j, 4);
    numbers v = _mm256_set1_epi32(four), pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(w, v));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
#elif defined(__aarch64__)
typedef int32x4_t numbers;
typedef int8x16_t factors;
#define PARTS 8
#define SPAN 4
#define MOST 4
#define OFFSET 0
static inline factors take_factors(const int8_t *x) { return vld1q_s8(x); }
static inline numbers take_weights(const int8_t *w) { return vreinterpretq_s32_s8(vld1q_s8(w)); }
#if defined(__ARM_FEATURE_DOTPROD)
#define INT8_WITH "neon-dot"
#define dot(sum, w, x, j) vdotq_laneq_s32(sum, vreinterpretq_s8_s32(w), x, j)
#else
#define INT8_WITH "neon"
/* Two products, 128 · 127 at most, fit 16 bits. */
#define dot(sum, w, x, j) dot_of_pairs(sum, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), j)))
static inline numbers dot_of_pairs(numbers sum, int8x16_t w, int8x16_t x) {
    int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}
#endif
#else
#define INT8_WITH "c"
typedef int32_t numbers __attribute__((vector_size(16)));
typedef const int8_t *factors;
#define PARTS 8
#define SPAN 8
#define MOST 2
#define OFFSET 0
static inline factors take_factors(const int8_t *x) { return x; }
static inline numbers take_weights(const int8_t *w) {
    numbers v;
    memcpy(&v, w, sizeof v);
    return v;
}
static inline numbers dot(numbers sum, numbers w, factors x, const int j) {
    bytes each;
    memcpy(&each, &w, sizeof each);
    for (int c = 0; c < 4; c++)
        for (int i = 0; i < 4; i++) sum[c] += each[4 * c + i] * x[4 * j + i];
    return sum;
}
#endif

#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* `rows` of them by `span` parts of a panel, from part `first` on. What is const is known where this is inlined. */
static inline __attribute__((always_inline)) void int8_span(const struct linear *job, const int8_t *w, int row, int first,
                                                            int32_t (*sums)[PANEL], const int rows, const int span) {
    int padded = up_to(job->k, DEPTH);
    const int8_t *x = int8_x(job) + (size_t)row * padded;
    numbers s[MOST][PARTS];
    EACH(r, rows) EACH(p, span) s[r][p] = (numbers){0};
    w += first * sizeof(numbers);
    for (int k = 0; k < padded; k += 16, x += 16, w += 16 * PANEL) {
        factors v[MOST];
        EACH(r, rows) v[r] = take_factors(x + (size_t)r * padded);
        for (int ahead = 0; row == 0 && first == 0 && ahead < 16 * PANEL; ahead += 64) __builtin_prefetch(w + AHEAD + ahead);
#define FOUR_OF(j)                                                                                                     \
    {                                                                                                                  \
        numbers weights[PARTS];                                                                                        \
        EACH(p, span) weights[p] = take_weights(w + j * 4 * PANEL + p * sizeof(numbers));                              \
        EACH(r, rows) EACH(p, span) s[r][p] = dot(s[r][p], weights[p], v[r], j);                                       \
    }
        FOUR_OF(0) FOUR_OF(1) FOUR_OF(2) FOUR_OF(3)
#undef FOUR_OF
    }
    EACH(r, rows) memcpy((char *)sums[r] + first * sizeof(numbers), s[r], span * sizeof(numbers));
}

/* N int8 rows: half as many of x. One row of x goes by a whole panel as it comes; more by a span after the other. */
#define INT8_ROWS(N)                                                                                        \
    static void int8_rows_##N(const struct linear *job, const int8_t *w, int row, int index) {              \
        int32_t sums[N][PANEL] __attribute__((aligned(64)));                                                \
        const int span = N == 2 ? PARTS : SPAN;                                                             \
        for (int first = 0; first < PARTS; first += span) int8_span(job, w, row, first, sums, N, span);     \
        for (int r = 0; r < N; r += 2) leave_numbers(job, (row + r) / 2, index, sums + r, OFFSET);          \
    }
INT8_ROWS(2)
#if MOST >= 4
INT8_ROWS(4)
#endif
#if MOST >= 6
INT8_ROWS(6)
#endif
#if MOST >= 12
INT8_ROWS(8)
INT8_ROWS(12)
#endif

static void int8_panel(const void *given, int item, int member) {
    const struct linear *job = given;
    int index = job->first_panel + item, row = 0, rows = 2 * job->rows;
    const int8_t *w = int8_panel_of(job, index);
#define BY(N) for (; row + N <= rows; row += N) int8_rows_##N(job, w, row, index);
#if MOST >= 12
    BY(12) BY(8)
#endif
#if MOST >= 6
    BY(6)
#endif
#if MOST >= 4
    BY(4)
#endif
    BY(2)
#undef BY
}
#endif
