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

/* The division is one without branches: else each waits for the one before. */
template <int GATE> INLINE float gated(float x, float up) {
    if (GATE == SILU) return __fdividef(x, 1.0f + __expf(-x)) * up;
    const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner)) * up;
}

/* A warp's results: sixteen columns, of eight rows in each c[m]: columns g and g + 8 of rows 2t and 2t + 1. A gated weight
 * has gates in the first eight columns and what they gate in the others; what is gated changes lanes, so that a warp writes
 * 128 bytes that lie together. */
template <int ROWS, int GATE>
INLINE void write_rows(const float (*c)[4], int column, int row, int rows, int pitch, float *sums, bf16 *gated_rows) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    if (GATE == PLAIN) {
        float *out = sums + (size_t)(row + 2 * t) * pitch + column + g;
#pragma unroll
        for (int m = 0; m < ROWS / 8; m++, out += 8 * (size_t)pitch)
            out[0] = c[m][0], out[8] = c[m][2], out[pitch] = c[m][1], out[pitch + 8] = c[m][3];
    } else {
        bf16 *out = gated_rows + place(row + g, column / 2 + 2 * t, rows);
#pragma unroll
        for (int m = 0; m < ROWS / 8; m++)
            *(unsigned *)(out + place(8 * m, 0, rows)) =
                transposed(rounded(gated<GATE>(c[m][0], c[m][2]), gated<GATE>(c[m][1], c[m][3])));
    }
}
template <int ROWS>
INLINE void write_out(const float (*c)[4], int column, int row, int rows, int pitch, float *sums, bf16 *gated_rows, int gate) {
    if (gate == PLAIN) write_rows<ROWS, PLAIN>(c, column, row, rows, pitch, sums, gated_rows);
    else if (gate == SILU) write_rows<ROWS, SILU>(c, column, row, rows, pitch, sums, gated_rows);
    else write_rows<ROWS, GELU_TANH>(c, column, row, rows, pitch, sums, gated_rows);
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
    const int mine = warp >> 2;
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
    write_out<ROWS>(c, (tile + mine) * TILE + 16 * (warp & 3), 0, ROWS, pitch, sums, gated_rows, gate);
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

/* ROWS rows × 128 columns, all of k: four warps for each tile of columns multiply, one fetches ahead and leaves registers to
 * them. HELD: of a lane's sums of ranges those in registers, others lie behind the ring; none where k is one range.
 *
 * A block fills a processor: what another process launches, a step of decoding beside a vault's prefill, finds no room
 * there before the block ends, after 40 to 60 µs with a k of 4,096. So none takes a second tile. Where ROWS does not divide
 * `rows`, the last block begins earlier and computes some again, to the same bits. */
template <int ROWS, int STAGES, int HELD>
INLINE void many_rows(const bf16 *x, const bf16 *weight, float *sums, bf16 *gated_rows, int rows, int k, int tiles, int splits,
                      int gate) {
    constexpr int BYTES = 2 * TILE_BYTES + ROWS * STEP * 2, EACH = ROWS / 2, APART = 256 * 16;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, steps = k / STEP;
    const int row = min((int)blockIdx.x * ROWS, rows - ROWS), tile = blockIdx.y * 2 + (warp >> 2 & 1);
    const ring r = make_ring(ring_memory, STAGES, BYTES, 8);
    let_next_start();
    after_last();
    if (warp >= 8) {
        leave_registers<24>();
        if (warp > 8) return;
        for (int i = 0; i < steps; i++) {
            if (i >= STAGES) barrier_wait(r.freed(i), (i / STAGES - 1) & 1);
            if (lane == 0) barrier_expect(r.filled(i), BYTES);
            __syncwarp();
            if (lane < STEP / PIECE_K)
                bulk_copy(r.stage(i) + 2 * TILE_BYTES + lane * ROWS * PIECE_K * 2,
                          x + ((size_t)(i * (STEP / PIECE_K) + lane) * rows + row) * PIECE_K, ROWS * PIECE_K * 2, r.filled(i));
            else if (lane < STEP / PIECE_K + 2) {
                const int n = lane - STEP / PIECE_K;
                bulk_copy(r.stage(i) + n * TILE_BYTES, weight + ((size_t)min(tile + n, tiles - 1) * steps + i) * (STEP * TILE),
                          TILE_BYTES, r.filled(i));
            }
        }
        return;
    }
    take_registers<240>();
    const unsigned apart = r.behind() + threadIdx.x * 16;
    float c[ROWS / 8][4], sum[HELD ? HELD : 1], *v = &c[0][0];
    for (int range = 0, i = 0; range < (HELD ? splits : 1); range++) {
        const int begun = i, end = HELD ? (range + 1) * steps / splits : steps;
        for (; i < end; i++) {
            barrier_wait(r.filled(i), (i / STAGES) & 1);
            begin_stage();
            multiply_stage<ROWS, ROWS>(c, r.stage(i) + (warp >> 2) * TILE_BYTES, r.stage(i) + 2 * TILE_BYTES, i == begun);
            finish_stages<1>();
            if (i > begun) give_back(r, i - 1, lane);
        }
        finish_stages<0>();
        give_back(r, i - 1, lane);
        if (!HELD) break;
        const bool more = range + 1 < splits;
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            if (range) v[j] = sum[j] + v[j];
            if (more) sum[j] = v[j];
        }
#pragma unroll
        for (int j = HELD; j < EACH; j += 4) {
            const unsigned at = apart + (j - HELD) / 4 * APART;
            if (range) {
                const uint4 s = sixteen(at);
                v[j] = __uint_as_float(s.x) + v[j], v[j + 1] = __uint_as_float(s.y) + v[j + 1];
                v[j + 2] = __uint_as_float(s.z) + v[j + 2], v[j + 3] = __uint_as_float(s.w) + v[j + 3];
            }
            if (more) keep_sixteen(at, v + j);
        }
    }
    if (tile >= tiles) return;
    write_out<ROWS>(c, tile * TILE + 16 * (warp & 3), row, rows, tiles * TILE, sums, gated_rows, gate);
}

#define MANY_ROWS(name, rows_, stages, held)                                                               \
    KERNEL __launch_bounds__(384, 1) name(LINEAR_ARGUMENTS) {                                              \
        many_rows<rows_, stages, held>(x, weight, sums, gated_rows, rows, k, tiles, splits, gate);         \
    }
MANY_ROWS(linear_many_128, 128, 6, 64)
MANY_ROWS(linear_many_256, 256, 4, 96)
MANY_ROWS(linear_whole_256, 256, 4, 0)
