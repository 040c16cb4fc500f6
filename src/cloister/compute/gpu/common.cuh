/* What all kernels share: bf16 without headers, tensor cores, bulk copies, and how one kernel follows another.
 *
 * Every kernel calls `after_last` before it reads or writes what a step changes. So it may start while the kernel
 * before it still runs, and fetch weights, which nothing changes. */
typedef unsigned short bf16;
#define INLINE __device__ __forceinline__
#define KERNEL extern "C" __global__ void

INLINE void after_last() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
INLINE void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/* Two floats, each rounded once; the first is in the lower half. */
INLINE unsigned rounded(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
INLINE bf16 rounded(float x) { return (bf16)rounded(x, 0.0f); }
INLINE float widened(bf16 x) { return __uint_as_float((unsigned)x << 16); }

/* Of eight rows and columns that a warp holds, two neighbours of a row for each lane. */
INLINE unsigned transposed(unsigned x) {
    unsigned y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* c[16 × 8] += a[16 × 16] · b[16 × 8]. A lane's own sixteen bytes of a row of 32 are what two such products need of it,
 * if k is permuted alike on both sides: (x, y) in the first, (z, w) in the second. */
INLINE void multiply(float *c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* The same for the upper eight rows alone: c[8 × 8] += a[8 × 16] · b[16 × 8]. */
INLINE void multiply_upper(float *c, unsigned a0, unsigned a2, unsigned b0, unsigned b1) {
    asm volatile("{\n.reg .f32 x, y;\n"
                 "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,x,y},{%2,%4,%3,%4},{%5,%6},{%0,%1,%7,%7};\n}"
                 : "+f"(c[0]), "+f"(c[1])
                 : "r"(a0), "r"(a2), "r"(0), "r"(b0), "r"(b1), "f"(0.0f));
}
template <int ROWS>
INLINE void multiply(float *c, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    if (ROWS > 1) multiply(c, a0, a1, a2, a3, b0, b1);
    else multiply_upper(c, a0, a2, b0, b1);
}
template <int ROWS = 2> INLINE void multiply_32(float *c, uint4 upper, uint4 lower, uint4 b) {
    multiply<ROWS>(c, upper.x, lower.x, upper.y, lower.y, b.x, b.y);
    multiply<ROWS>(c, upper.z, lower.z, upper.w, lower.w, b.z, b.w);
}

INLINE unsigned in_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
INLINE void barrier_init(unsigned at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
INLINE void barrier_expect(unsigned at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
INLINE void barrier_arrive(unsigned at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
INLINE void barrier_wait(unsigned at, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(at), "r"(parity)
        : "memory");
}
INLINE void bulk_copy(unsigned to, const void *from, int bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Where a row's value k lies among `rows` rows of activations that go into a product: [k / 8][row][8]. */
INLINE size_t place(int row, int k, int rows) { return ((size_t)(k >> 3) * rows + row) * 8 + (k & 7); }

INLINE uint4 sixteen(unsigned at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

INLINE void keep_sixteen(unsigned at, const float *v) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}

/* A word of a mailbox: a value and the number that says it is valid, written at once (link.cuh). */
INLINE void post(uint2 *at, float value, unsigned number) {
    asm volatile("st.volatile.global.v2.u32 [%0], {%1,%2};" ::"l"(at), "r"(__float_as_uint(value)), "r"(number) : "memory");
}

/* A layer's words in a mailbox: that it begins, with the step's number; and its gate. */
INLINE unsigned *begins_at(unsigned *gates, int layer) { return gates + layer * 16; }
INLINE unsigned *gate_of(unsigned *gates, int layer) { return gates + layer * 16 + 1; }

/* Behind the layers' words: how a step is answered, with its number. Decided once, by whoever is first (link.cuh). */
enum { UNDECIDED, STAYS, COMES };
INLINE unsigned *way_of(unsigned *gates, int layers) { return gates + layers * 16 + 2; }
INLINE unsigned way(unsigned step, int how) { return step << 2 | how; }
