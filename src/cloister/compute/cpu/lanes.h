/* Sixteen floats at a time, in the compiler's portable vectors: the same operations in the same order on every
 * instruction set that fuses multiply and add. */
#pragma once
#include <stdint.h>
#include <string.h>
#if defined(__aarch64__)
#include "quads.h"
#endif

typedef float lanes __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef uint32_t bits __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(32)));

#define WIDTH 16
static const float MINUS_INFINITY = -__builtin_inff();

static inline lanes all(float x) { return (lanes){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
static inline ints all_ints(int32_t x) { return (ints){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
static const ints LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static inline lanes load(const float *p) {
    lanes v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void store(float *p, lanes v) { memcpy(p, &v, sizeof v); }
#define PICK(FLOATS, INTS, mask, yes, no) ((FLOATS)(((mask) & (INTS)(yes)) | (~(mask) & (INTS)(no))))
static inline lanes pick(ints mask, lanes yes, lanes no) { return PICK(lanes, ints, mask, yes, no); }
static inline lanes larger(lanes a, lanes b) { return pick(a > b, a, b); }

static inline lanes load_bf16(const uint16_t *p) {
#if defined(__aarch64__)
    quad parts[4];
    UNROLLED(i, 4) parts[i] = take_quad(p, i * FOUR, 1);
    return load((const float *)parts);
#else
    halves h;
    memcpy(&h, p, sizeof h);
    return (lanes)(__builtin_convertvector(h, bits) << 16);
#endif
}
/* Round to nearest, ties to even. */
static inline uint16_t to_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
static inline void store_bf16(uint16_t *p, lanes v) {
    bits u = (bits)v;
    halves h = __builtin_convertvector((u + 0x7fff + ((u >> 16) & 1)) >> 16, halves);
    memcpy(p, &h, sizeof h);
}

/* e^x to about one unit in the last place (Cephes' reduction and polynomial); 0 below the smallest normal float. */
#define EXPONENTIAL(NAME, FLOATS, INTS)                                                  \
    static inline FLOATS NAME(FLOATS x) {                                                \
        FLOATS none = {0}, low = none - 87.33654f, high = none + 88.37626f;              \
        INTS under = x < low;                                                            \
        x = PICK(FLOATS, INTS, x > high, high, PICK(FLOATS, INTS, under, low, x));       \
        FLOATS magic = none + 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer */  \
        FLOATS n = (x * 1.44269504f + magic) - magic;                                    \
        FLOATS r = x - n * 0.693359375f;                                                 \
        r = r + n * 2.12194440e-4f;                                                      \
        FLOATS p = none + 1.9875691500e-4f;                                              \
        p = p * r + 1.3981999507e-3f;                                                    \
        p = p * r + 8.3334519073e-3f;                                                    \
        p = p * r + 4.1665795894e-2f;                                                    \
        p = p * r + 1.6666665459e-1f;                                                    \
        p = p * r + 5.0000001201e-1f;                                                    \
        p = p * (r * r) + r + 1.0f;                                                      \
        INTS exponent = __builtin_convertvector(n, INTS) << 23;                          \
        return PICK(FLOATS, INTS, under, none, (FLOATS)((INTS)p + exponent));            \
    }

#if defined(__aarch64__)
EXPONENTIAL(exponential_quad, quad, quad_ints)

static inline lanes exponential(lanes x) {
    quad parts[4];
    memcpy(parts, &x, sizeof x);
    UNROLLED(i, 4) parts[i] = exponential_quad(parts[i]);
    memcpy(&x, parts, sizeof x);
    return x;
}

/* Horizontal sums and maxima, by the tree that sixteen lanes have elsewhere. */
#define FOLDED(v, WITH) \
    quad parts[4];                                                                                                  \
    memcpy(parts, &(v), sizeof parts);                                                                              \
    quad four = WITH(WITH(parts[0], parts[2]), WITH(parts[1], parts[3]));                                           \
    four = WITH(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));                                             \
    return WITH(four, __builtin_shufflevector(four, four, 1, 0, 3, 2))[0];
static inline quad quad_sum(quad a, quad b) { return a + b; }
static inline quad quad_larger(quad a, quad b) { return PICK(quad, quad_ints, a > b, a, b); }
static inline float sum(lanes v) { FOLDED(v, quad_sum) }
static inline float maximum(lanes v) { FOLDED(v, quad_larger) }
#else
EXPONENTIAL(exponential, lanes, ints)

/* Horizontal sums and maxima, always by the same tree. */
#define FOLD(v, distance) \
    __builtin_shufflevector(v, v, (0 + distance) % 16, (1 + distance) % 16, (2 + distance) % 16, (3 + distance) % 16, \
                            (4 + distance) % 16, (5 + distance) % 16, (6 + distance) % 16, (7 + distance) % 16, \
                            (8 + distance) % 16, (9 + distance) % 16, (10 + distance) % 16, (11 + distance) % 16, \
                            (12 + distance) % 16, (13 + distance) % 16, (14 + distance) % 16, (15 + distance) % 16)
static inline float sum(lanes v) {
    v += FOLD(v, 8), v += FOLD(v, 4), v += FOLD(v, 2), v += FOLD(v, 1);
    return v[0];
}
static inline float maximum(lanes v) {
    v = larger(v, FOLD(v, 8)), v = larger(v, FOLD(v, 4)), v = larger(v, FOLD(v, 2)), v = larger(v, FOLD(v, 1));
    return v[0];
}
#endif
