/* Four floats at a time, where registers hold four: what the compiler makes of sixteen (lanes.h) goes through memory
 * there, and its comparisons one by one. */
#pragma once
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define FOUR 4
typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_ints __attribute__((vector_size(16)));
typedef uint32_t quad_bits __attribute__((vector_size(16)));
typedef uint16_t quad_halves __attribute__((vector_size(16)));
#define UNROLLED(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

static inline quad load_quad(const void *p) {
    quad v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store_quad(void *p, quad v) { memcpy(p, &v, sizeof v); }

/* Four factors, each to be multiplied by: without the barrier gcc would load each lane by itself. */
static inline quad load_factors(const float *x) {
    quad v = load_quad(x);
    __asm__("" : "+w"(v));
    return v;
}

/* Four of a block's keys or values: fp32, or bf16 widened (exactly) as it is used. */
static inline __attribute__((always_inline)) quad take_quad(const void *from, int at, const int bf16) {
    if (!bf16) return load_quad((const float *)from + at);
    return (quad)vshll_n_u16(vld1_u16((const uint16_t *)from + at), 16); /* convertvector would go one by one */
}
