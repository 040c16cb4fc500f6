/* Products of activations [k / 8][rows][8] with a weight [column / 64][k / 8][64][8], both bf16, sums in fp32.
 *
 * One order of accumulation for every output, whatever the number of rows: k is cut into `splits` ranges, a number that
 * depends on the weight's shape alone; a range is summed by the tensor cores from its beginning to its end, 16 values at
 * a time (stage.cuh); the ranges are added in order. With few rows the ranges are different blocks' work and whoever reads
 * the result adds them up; with many rows one block has them all and adds them up itself.
 *
 * Weights are the first factor, 64 columns for four warps, so that few rows waste little. A warp of its own fetches both
 * factors ahead with bulk copies; the weight's first stages even before the last kernel is done. */
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

/* The gates of whom the rows of a step ask, where this product gives their queries (link.cuh). A warp of every block calls
 * it; the last block to start opens those of who comes for every layer. */
struct opening {
    unsigned *started;
    const unsigned long long *gates;
    const unsigned *number;
    int rows, layer, layers;
    INLINE void when_all_have_started() const {
        if (!gates) return;
        const int lane = threadIdx.x & 31;
        const bool last = lane == 0 && atomicAdd(started + layer, 1) + 1 == gridDim.x * gridDim.y;
        if (!__any_sync(~0u, last)) return;
        for (int i = lane; i < rows; i += 32) { /* before the wait: past the first-level cache */
            unsigned *asked = (unsigned *)__ldcg(gates + i);
            if (asked && *(volatile unsigned *)way_of(asked, layers) == way(__ldcg(number), COMES))
                *(volatile unsigned *)gate_of(asked, layer) = 1;
        }
    }
};

/* ROWS rows, 64·TILES columns of one range of k: four warps for each tile of columns multiply, the last fetches. Weights
 * have STAGES, rows, which are near, X_STAGES, no more. */
template <int ROWS, int TILES, int STAGES, int X_STAGES>
INLINE void few_rows(const bf16 *x, const bf16 *weight, float *sums, bf16 *gated_rows, int k, int tiles, int splits, int gate,
                     const opening &opens) {
    constexpr int X_BYTES = ROWS * STEP * 2, BYTES = TILES * TILE_BYTES;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, steps = k / STEP;
    const int first = blockIdx.y * steps / splits, count = (blockIdx.y + 1) * steps / splits - first;
    const int tile = blockIdx.x * TILES, here = min(TILES, tiles - tile);
    const ring r = make_ring(ring_memory, STAGES, BYTES, 4 * TILES);
    let_next_start();
    if (warp == 4 * TILES) {
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
    const int mine = warp >> 2, g = lane >> 2, t = lane & 3;
    float c[ROWS / 8][4];
    for (int i = 0; i < count; i++) {
        barrier_wait(r.filled(i), (i / STAGES) & 1);
        begin_stage();
        multiply_stage<ROWS, 64>(c, r.stage(i) + mine * TILE_BYTES, r.behind() + i % X_STAGES * X_BYTES, i == 0);
        finish_stages<1>();
        if (i) give_back(r, i - 1, lane);
    }
    finish_stages<0>();
    after_last();
    const int pitch = tiles * TILE;
    sums += (size_t)blockIdx.y * ROWS * pitch;
    if (mine >= here) return;
#pragma unroll
    for (int m = 0; m < ROWS / 8; m++)
        write_out(c[m], (tile + mine) * TILE + 16 * (warp & 3) + g, 8 * m + 2 * t, ROWS, pitch, sums, gated_rows, gate);
}

#define LINEAR_ARGUMENTS                                                                                            \
    const bf16 *x, const bf16 *weight, float *sums, bf16 *gated_rows, int rows, int k, int tiles, int splits, int gate, \
        unsigned *started, const unsigned long long *gates, const unsigned *number, int asking, int layer, int layers
/* Compiled as if a block had `spare` warps more: beside `blocks` of them, registers are left for one that answers, and up to
 * 64 rows so is shared memory (link.cuh); with more rows it starts when a block has ended. */
#define FEW_ROWS(rows_, tiles_, stages, x_stages, blocks, spare)                                                   \
    KERNEL __launch_bounds__(32 * (4 * tiles_ + 1 + spare), blocks) linear_##rows_(LINEAR_ARGUMENTS) {            \
        few_rows<rows_, tiles_, stages, x_stages>(x, weight, sums, gated_rows, k, tiles, splits, gate,            \
                                                  {started, gates, number, asking, layer, layers});               \
    }
FEW_ROWS(8, 1, 5, 5, 4, 3)
FEW_ROWS(16, 1, 4, 4, 4, 3)
FEW_ROWS(32, 2, 4, 4, 2, 3)
FEW_ROWS(64, 2, 4, 3, 2, 3)
FEW_ROWS(96, 2, 4, 3, 2, 3)
FEW_ROWS(128, 2, 3, 3, 2, 0)

/* 128 rows × 128 columns, all of k: four warps for each tile of columns multiply, the last fetches ahead. */
KERNEL __launch_bounds__(288, 1) linear_many(LINEAR_ARGUMENTS) {
    constexpr int ROWS = 128, STAGES = 4, BYTES = 4 * TILE_BYTES;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, steps = k / STEP;
    const int row = blockIdx.x * ROWS, tile = blockIdx.y * 2, here = min(2, tiles - tile);
    const ring r = make_ring(ring_memory, STAGES, BYTES, 8);
    let_next_start();
    after_last();
    if (warp == 8) {
        for (int i = 0; i < steps; i++) {
            if (i >= STAGES) barrier_wait(r.freed(i), (i / STAGES - 1) & 1);
            if (lane == 0) {
                barrier_expect(r.filled(i), (here + 2) * TILE_BYTES);
                for (int n = 0; n < here; n++)
                    bulk_copy(r.stage(i) + n * TILE_BYTES, weight + ((size_t)(tile + n) * steps + i) * (STEP * TILE),
                              TILE_BYTES, r.filled(i));
            }
            __syncwarp();
            if (lane < STEP / PIECE_K)
                bulk_copy(r.stage(i) + 2 * TILE_BYTES + lane * ROWS * PIECE_K * 2,
                          x + ((size_t)(i * (STEP / PIECE_K) + lane) * rows + row) * PIECE_K, ROWS * PIECE_K * 2, r.filled(i));
        }
        return;
    }
    const int g = lane >> 2, t = lane & 3, mine = warp >> 2;
    float c[ROWS / 8][4], sum[ROWS / 8][4];
    for (int range = 0, i = 0; range < splits; range++) {
        const int begun = i, end = (range + 1) * steps / splits;
        for (; i < end; i++) {
            barrier_wait(r.filled(i), (i / STAGES) & 1);
            begin_stage();
            multiply_stage<ROWS, 128>(c, r.stage(i) + mine * TILE_BYTES, r.stage(i) + 2 * TILE_BYTES, i == begun);
            finish_stages<1>();
            if (i > begun) give_back(r, i - 1, lane);
        }
        finish_stages<0>();
        give_back(r, i - 1, lane);
#pragma unroll
        for (int j = 0; j < ROWS / 2; j++) {
            float &s = (&sum[0][0])[j];
            s = range ? s + (&c[0][0])[j] : (&c[0][0])[j];
        }
    }
    if (mine >= here) return;
#pragma unroll
    for (int m = 0; m < ROWS / 8; m++)
        write_out(sum[m], (tile + mine) * TILE + 16 * (warp & 3) + g, row + 8 * m + 2 * t, rows, tiles * TILE, sums, gated_rows,
                  gate);
}
