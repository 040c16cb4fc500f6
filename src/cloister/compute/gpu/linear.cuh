/* Products of activations [k / 32][rows][32] with a weight [column / 64][k / 32][64][32], both bf16, sums in fp32.
 *
 * One order of accumulation for every output, whatever the number of rows: k is cut into `splits` ranges, a number that
 * depends on the weight's shape alone; a range is summed by the tensor cores from its beginning to its end, 16 values at
 * a time; the ranges are added in order. With few rows the ranges are different blocks' work and whoever reads the
 * result adds them up; with many rows one block has them all and adds them up itself.
 *
 * Weights are the first factor, 16 columns per tensor operation, so that few rows waste little. A warp of its own
 * fetches both factors ahead with bulk copies; the weight's first stages even before the last kernel is done. */
#define STEP 64 /* k per stage */
#define TILE 64 /* columns that lie together */
#define TILE_BYTES (STEP * TILE * 2)

extern __shared__ __align__(128) unsigned char ring_memory[];

enum { PLAIN, SILU, GELU_TANH };

INLINE float gated(float x, float up, int gate) {
    if (gate == SILU) return x / (1.0f + __expf(-x)) * up;
    const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner)) * up;
}

/* One lane's four results: columns c and c + 8 of two neighbouring rows. A gated weight has gates in the first eight
 * columns of sixteen and what they gate in the others. */
INLINE void write_out(const float *c, int column, int row, int rows, int pitch, float *sums, bf16 *gated_rows, int gate) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
        if (gate == PLAIN) {
            float *out = sums + (size_t)(row + e) * pitch + column;
            out[0] = c[e];
            out[8] = c[2 + e];
        } else {
            const int k = (column >> 4) * 8 + (column & 7);
            gated_rows[place(row + e, k, rows)] = rounded(gated(c[e], c[2 + e], gate));
        }
    }
}

struct ring {
    unsigned full, empty, data;
    int stages, bytes;
    INLINE unsigned stage(int i) const { return data + (i % stages) * bytes; }
    INLINE unsigned behind() const { return data + stages * bytes; }
    INLINE unsigned filled(int i) const { return full + 8 * (i % stages); }
    INLINE unsigned freed(int i) const { return empty + 8 * (i % stages); }
};

INLINE ring make_ring(unsigned char *shared, int stages, int bytes, int readers) {
    const unsigned at = in_shared(shared);
    const ring r = {at, at + 64, at + 128, stages, bytes};
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, readers);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    return r;
}

/* A warp has read a stage. The next copy into it is the async proxy's: without a fence that says so it may come before
 * the reads, and does, now and then, on a processor that others use too (docs/gpu.md). */
INLINE void give_back(const ring &r, int i, int lane) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) barrier_arrive(r.freed(i));
}

INLINE uint4 sixteen(unsigned at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

/* The gates of whom the rows of a step ask, where this product gives their queries (link.cuh). A warp of every block calls
 * it; the last block to start opens them. */
struct opening {
    unsigned *started;
    const unsigned long long *gates;
    int rows, layer;
    INLINE void when_all_have_started() const {
        if (!gates) return;
        const int lane = threadIdx.x & 31;
        const bool last = lane == 0 && atomicAdd(started + layer, 1) + 1 == gridDim.x * gridDim.y;
        if (!__any_sync(~0u, last)) return;
        for (int i = lane; i < rows; i += 32) { /* before the wait: past the first-level cache */
            unsigned *asked = (unsigned *)__ldcg(gates + i);
            if (asked) *(volatile unsigned *)gate_of(asked, layer) = 1;
        }
    }
};

/* 8·EIGHTS·BANDS rows, 64·TILES columns of one range of k: four warps for each band of rows multiply, the last fetches.
 * Weights have STAGES, rows, which are near, X_STAGES, no more. */
template <int EIGHTS, int BANDS, int TILES, int STAGES, int X_STAGES>
INLINE void few_rows(const bf16 *x, const bf16 *weight, float *sums, bf16 *gated_rows, int k, int tiles, int splits, int gate,
                     const opening &opens) {
    constexpr int ROWS = 8 * EIGHTS * BANDS, X_BYTES = ROWS * STEP * 2, BYTES = TILES * TILE_BYTES;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, steps = k / STEP;
    const int first = blockIdx.y * steps / splits, count = (blockIdx.y + 1) * steps / splits - first;
    const int tile = blockIdx.x * TILES, here = min(TILES, tiles - tile);
    const ring r = make_ring(ring_memory, STAGES, BYTES, 4 * BANDS);
    let_next_start();
    if (warp == 4 * BANDS) {
        if (lane) return;
        auto fetch_weight = [&](int i) {
            barrier_expect(r.filled(i), here * TILE_BYTES + X_BYTES);
            for (int n = 0; n < here; n++)
                bulk_copy(r.stage(i) + n * TILE_BYTES, weight + ((size_t)(tile + n) * steps + first + i) * (STEP * TILE),
                          TILE_BYTES, r.filled(i));
        };
        auto fetch_x = [&](int i) {
            bulk_copy(r.behind() + i % X_STAGES * X_BYTES, x + (size_t)(first + i) * ROWS * STEP, X_BYTES, r.filled(i));
        };
        for (int i = 0; i < min(STAGES, count); i++) fetch_weight(i);
        after_last();
        for (int i = 0; i < min(X_STAGES, count); i++) fetch_x(i);
        for (int i = 0; i + X_STAGES < count; i++) { /* what was read of stage i makes room for others */
            barrier_wait(r.freed(i), (i / STAGES) & 1);
            if (i + STAGES < count) fetch_weight(i + STAGES);
            fetch_x(i + X_STAGES);
        }
        return;
    }
    if (warp == 0) opens.when_all_have_started();
    const int g = lane >> 2, t = lane & 3, band = warp >> 2, quarter = warp & 3;
    const int column = 16 * TILES * quarter; /* each warp has TILES groups of 16 columns, all in one tile */
    const unsigned weight_at = (column >> 6) * TILE_BYTES + ((column & 63) + g) * 64 + t * 16;
    float c[TILES][EIGHTS][4] = {};
    for (int i = 0; i < count; i++) {
        barrier_wait(r.filled(i), (i / STAGES) & 1);
        const unsigned w = r.stage(i) + weight_at;
        const unsigned rows_at = r.behind() + i % X_STAGES * X_BYTES + (band * 8 * EIGHTS + g) * 64 + t * 16;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 upper[TILES], lower[TILES];
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                upper[n] = sixteen(w + half * 4096 + n * 1024);
                lower[n] = sixteen(w + half * 4096 + n * 1024 + 512);
            }
#pragma unroll
            for (int m = 0; m < EIGHTS; m++) {
                const uint4 b = sixteen(rows_at + half * ROWS * 64 + m * 512);
#pragma unroll
                for (int n = 0; n < TILES; n++) multiply_32(c[n][m], upper[n], lower[n], b);
            }
        }
        give_back(r, i, lane);
    }
    after_last();
    const int pitch = tiles * TILE;
    sums += (size_t)blockIdx.y * ROWS * pitch;
    if ((column >> 6) >= here) return;
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int m = 0; m < EIGHTS; m++)
            write_out(c[n][m], tile * TILE + column + 16 * n + g, (band * EIGHTS + m) * 8 + 2 * t, ROWS, pitch, sums,
                      gated_rows, gate);
}

#define LINEAR_ARGUMENTS                                                                                            \
    const bf16 *x, const bf16 *weight, float *sums, bf16 *gated_rows, int rows, int k, int tiles, int splits, int gate, \
        unsigned *started, const unsigned long long *gates, int asking, int layer
/* Compiled as if a block had three warps more: beside `blocks` of them, registers are left for one that answers, and so is
 * shared memory (link.cuh). */
#define FEW_ROWS(rows_, eighths, bands, tiles_, stages, x_stages, blocks)                                         \
    KERNEL __launch_bounds__(32 * (4 * bands + 4), blocks) linear_##rows_(LINEAR_ARGUMENTS) {                     \
        few_rows<eighths, bands, tiles_, stages, x_stages>(x, weight, sums, gated_rows, k, tiles, splits, gate,   \
                                                           {started, gates, asking, layer});                      \
    }
FEW_ROWS(8, 1, 1, 1, 5, 5, 4)
FEW_ROWS(16, 2, 1, 1, 5, 5, 4)
FEW_ROWS(32, 2, 2, 2, 4, 4, 2)
FEW_ROWS(64, 4, 2, 2, 4, 3, 2)
FEW_ROWS(96, 4, 3, 2, 5, 5, 1)
FEW_ROWS(128, 4, 4, 2, 5, 5, 1)

/* 128 rows × 128 columns, all of k: eight warps multiply, 64 columns × 32 rows each; a lane of the first fetches ahead. */
KERNEL __launch_bounds__(256, 1) linear_many(LINEAR_ARGUMENTS) {
    constexpr int STAGES = 4, BYTES = 4 * TILE_BYTES;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, steps = k / STEP;
    const int row = blockIdx.x * 128, tile = blockIdx.y * 2, here = min(2, tiles - tile);
    const ring r = make_ring(ring_memory, STAGES, BYTES, 8);
    let_next_start();
    auto fetch = [&](int i) {
        if (i >= steps) return;
        if (i >= STAGES) barrier_wait(r.freed(i), (i / STAGES - 1) & 1);
        barrier_expect(r.filled(i), (here + 2) * TILE_BYTES);
        for (int n = 0; n < here; n++)
            bulk_copy(r.stage(i) + n * TILE_BYTES, weight + ((size_t)(tile + n) * steps + i) * (STEP * TILE), TILE_BYTES,
                      r.filled(i));
        for (int half = 0; half < 2; half++)
            bulk_copy(r.stage(i) + (2 + half) * TILE_BYTES, x + ((size_t)(2 * i + half) * rows + row) * 32, TILE_BYTES,
                      r.filled(i));
    };
    after_last();
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES - 1; i++) fetch(i);
    const int g = lane >> 2, t = lane & 3, side = warp & 1, band = (warp >> 1) * 32;
    float c[4][4][4] = {}, sum[4][4][4] = {};
    int range = 0, end = steps / splits;
    for (int i = 0; i < steps; i++) {
        if (threadIdx.x == 0) fetch(i + STAGES - 1);
        __syncwarp();
        barrier_wait(r.filled(i), (i / STAGES) & 1);
        const unsigned w = r.stage(i) + side * TILE_BYTES + g * 64 + t * 16;
        const unsigned rows_at = r.stage(i) + 2 * TILE_BYTES + (band + g) * 64 + t * 16;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 b[4];
#pragma unroll
            for (int m = 0; m < 4; m++) b[m] = sixteen(rows_at + half * TILE_BYTES + m * 512);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const uint4 upper = sixteen(w + half * 4096 + n * 1024), lower = sixteen(w + half * 4096 + n * 1024 + 512);
#pragma unroll
                for (int m = 0; m < 4; m++) multiply_32(c[n][m], upper, lower, b[m]);
            }
        }
        give_back(r, i, lane);
        if (i + 1 == end) {
            const bool first = range == 0;
            range++;
            end = (range + 1) * steps / splits;
#pragma unroll
            for (int j = 0; j < 64; j++) {
                float &s = (&sum[0][0][0])[j], &p = (&c[0][0][0])[j];
                s = first ? p : s + p;
                p = 0.0f;
            }
        }
    }
    if (side >= here) return;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int m = 0; m < 4; m++)
            write_out(sum[n][m], (tile + side) * TILE + 16 * n + g, row + band + m * 8 + 2 * t, rows, tiles * TILE, sums,
                      gated_rows, gate);
}
