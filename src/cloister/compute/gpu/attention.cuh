/* Causal attention over a paged cache: Petridish's Theorem 1, with one order of arithmetic for every query.
 *
 * Sixteen queries (neighbouring rows × the heads of one KV head) go through the tensor cores together. A segment is cut
 * from its own beginning into pieces of 64 positions, a warp's work: all scores, one maximum, one sum. Four pieces are a
 * group; they are merged in order. The groups of a segment are merged in order, and so are the segments (public, private,
 * generated). What a query does not see adds exact zeros, so neither its neighbours in a tile, nor the chunking, nor
 * whether one block walks all groups or each group has a block of its own leaves a trace in its result.
 *
 * A part is (O, m, l): O = Σ exp2(s - m)·V, not divided yet; m the largest score, in base 2; l = Σ exp2(s - m). */
#define QUERIES 16
#define PIECE 64
#define GROUP_TOKENS (4 * PIECE)
#define NOTHING -1e30f
#define PITCH (DIM + 4)
#define Q_PITCH (DIM + 32)

struct attention {
    const float *q; /* [row][head][dim], rotated */
    const bf16 *cache;
    const int *span, *position;          /* per row */
    const int *tile_row, *tile_rows;     /* per tile */
    const int *tables;                   /* [span][table_stride] */
    const int *segments, *counts;        /* [span][3][first block, length, shift, rotated]; per span */
    const float *rotation_cosine, *rotation_sine; /* [span][dim] */
    float *parts; /* [tile][kv head][group][16][dim + 2]; null: one block walks all groups */
    bf16 *out;    /* [heads · dim / 32][rows][32] */
    size_t block_stride;
    int table_stride, rows, heads, kv_heads, window, most_groups;
    float scale; /* times log2 e */
};

struct seen {
    int start, end; /* positions of the segment that a query sees */
};

struct segment {
    int first, length, shift, rotated;
    INLINE seen by(int position, int window) const {
        const int place = position + shift, end = min(place + 1, length);
        return {window ? max(0, place - window + 1) : 0, max(0, end)};
    }
};

INLINE segment segment_of(const attention &a, int span, int index) {
    const int4 s = *(const int4 *)(a.segments + (span * 3 + index) * 4);
    return {s.x, s.y, s.z, s.w};
}

struct tile_shared {
    float o[4][QUERIES][PITCH], m[4][QUERIES], l[4][QUERIES];
    bf16 q[QUERIES][Q_PITCH];
};

/* One thread's share of a part: eight threads hold a query. */
struct share {
    float o[DIM / 8], m, l;
    INLINE void clear() {
        m = NOTHING;
        l = 0.0f;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++) o[i] = 0.0f;
    }
    INLINE void merge(const share &next) {
        const float top = fmaxf(m, next.m), mine = exp2f(m - top), its = exp2f(next.m - top);
#pragma unroll
        for (int i = 0; i < DIM / 8; i++) o[i] = __fadd_rn(__fmul_rn(o[i], mine), __fmul_rn(next.o[i], its));
        l = __fadd_rn(__fmul_rn(l, mine), __fmul_rn(next.l, its));
        m = top;
    }
};

INLINE void load_queries(const attention &a, tile_shared &s, int row, int rows, int span, int kv, bool rotated) {
    const int group = a.heads / a.kv_heads;
    for (int i = threadIdx.x; i < QUERIES * DIM / 2; i += blockDim.x) {
        const int query = i / (DIM / 2), d = i % (DIM / 2);
        float x = 0.0f, y = 0.0f;
        if (query < rows * group) {
            const float *from = a.q + ((size_t)(row + query / group) * a.heads + kv * group + query % group) * DIM + d;
            x = from[0];
            y = from[DIM / 2];
            if (rotated) {
                const float *c = a.rotation_cosine + (size_t)span * DIM + d, *z = a.rotation_sine + (size_t)span * DIM + d;
                const float u = x, v = y;
                x = __fsub_rn(__fmul_rn(u, c[0]), __fmul_rn(v, z[0]));
                y = __fadd_rn(__fmul_rn(v, c[DIM / 2]), __fmul_rn(u, z[DIM / 2]));
            }
        }
        s.q[query][d] = rounded(x);
        s.q[query][d + DIM / 2] = rounded(y);
    }
}

/* One warp: what the tile's queries find in 64 positions from `from` on; into shared memory. */
INLINE void piece(const attention &a, tile_shared &s, const int *table, int kv, int from, int most, seen upper, seen lower) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float score[4][2][4] = {};
    const bf16 *block[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int at = from + 16 * j;
        block[j] = a.cache + (at < most ? table[at >> 4] * a.block_stride : 0) + (size_t)kv * 16 * DIM;
    }
#pragma unroll
    for (int c = 0; c < DIM / 32; c++) {
        const uint4 high = *(const uint4 *)&s.q[g][32 * c + 8 * t], low = *(const uint4 *)&s.q[g + 8][32 * c + 8 * t];
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (from + 16 * j < most)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int token = 4 * (g >> 1) + 2 * e + (g & 1);
                    multiply_32(score[j][e], high, low, *(const uint4 *)(block[j] + token * DIM + 32 * c + 8 * t));
                }
    }
    float top[2] = {NOTHING, NOTHING}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = from + 16 * j + 4 * t + 2 * e + (i & 1);
                const seen by = i < 2 ? upper : lower;
                float &x = score[j][e][i];
                x = at >= by.start && at < by.end ? __fmul_rn(x, a.scale) : NOTHING;
                top[i >> 1] = fmaxf(top[i >> 1], x);
            }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 2));
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = score[j][e][i];
                x = x == NOTHING ? 0.0f : exp2f(x - top[i >> 1]);
                total[i >> 1] = __fadd_rn(total[i >> 1], x);
            }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] = __fadd_rn(total[h], __shfl_xor_sync(~0u, total[h], 1));
        total[h] = __fadd_rn(total[h], __shfl_xor_sync(~0u, total[h], 2));
    }
    float o[DIM / 8][4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (from + 16 * j < most) {
            const bf16 *values = block[j] + (size_t)a.kv_heads * 16 * DIM + lane * 8;
            const unsigned p0 = rounded(score[j][0][0], score[j][0][1]), p1 = rounded(score[j][0][2], score[j][0][3]);
            const unsigned p2 = rounded(score[j][1][0], score[j][1][1]), p3 = rounded(score[j][1][2], score[j][1][3]);
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) {
                const uint4 v = *(const uint4 *)(values + i * 256);
                multiply(o[2 * i], p0, p1, p2, p3, v.x, v.y);
                multiply(o[2 * i + 1], p0, p1, p2, p3, v.z, v.w);
            }
        }
#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
        *(float2 *)&s.o[warp][g][8 * i + 2 * t] = make_float2(o[i][0], o[i][1]);
        *(float2 *)&s.o[warp][g + 8][8 * i + 2 * t] = make_float2(o[i][2], o[i][3]);
    }
    if (t == 0) {
        s.m[warp][g] = top[0], s.l[warp][g] = total[0];
        s.m[warp][g + 8] = top[1], s.l[warp][g + 8] = total[1];
    }
}

/* A group's part, from the pieces that hold anything. */
INLINE void group_part(share &part, const tile_shared &s, int pieces) {
    const int query = threadIdx.x >> 3, eighth = threadIdx.x & 7;
    part.clear();
    for (int w = 0; w < pieces; w++) {
        share one;
        one.m = s.m[w][query];
        one.l = s.l[w][query];
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) *(float4 *)&one.o[4 * i] = *(const float4 *)&s.o[w][query][32 * i + 4 * eighth];
        part.merge(one);
    }
}

INLINE void write_answer(const attention &a, const share &whole, int row, int rows, int kv) {
    const int query = threadIdx.x >> 3, eighth = threadIdx.x & 7, group = a.heads / a.kv_heads;
    if (query >= rows * group) return;
    const int column = (kv * group + query % group) * DIM + 4 * eighth;
    const float l = whole.l > 0.0f ? whole.l : 1.0f;
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
        const float *o = whole.o + 4 * i;
        *(uint2 *)(a.out + place(row + query / group, column + 32 * i, a.rows)) =
            make_uint2(rounded(__fdiv_rn(o[0], l), __fdiv_rn(o[1], l)), rounded(__fdiv_rn(o[2], l), __fdiv_rn(o[3], l)));
    }
}

#define ATTENTION_ARGUMENTS                                                                                            \
    const float *q, const bf16 *cache, const int *span, const int *position, const int *tile_row, const int *tile_rows, \
        const int *tables, const int *segments, const int *counts, const float *rotation_cosine,                       \
        const float *rotation_sine, float *parts, bf16 *out, size_t block_stride, int table_stride, int rows,          \
        int heads, int kv_heads, int window, int most_groups, float scale
#define ATTENTION                                                                                                       \
    {q, cache, span, position, tile_row, tile_rows, tables, segments, counts, rotation_cosine, rotation_sine, parts,    \
     out, block_stride, table_stride, rows, heads, kv_heads, window, most_groups, scale}

KERNEL __launch_bounds__(128, 3) attend(ATTENTION_ARGUMENTS) {
    const attention a = ATTENTION;
    __shared__ tile_shared s;
    const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, kv = blockIdx.y;
    after_last();
    let_next_start();
    const int row = a.tile_row[blockIdx.x], here_rows = a.tile_rows[blockIdx.x], group = a.heads / a.kv_heads;
    const int my_span = a.span[row], count = a.counts[my_span];
    share whole;
    whole.clear();
    int group_number = 0; /* among those of all segments */
    for (int index = 0; index < count; index++) {
        const segment here = segment_of(a, my_span, index);
        const int first = a.position[row], last = first + here_rows - 1;
        const int most = here.by(last, a.window).end, least = here.by(first, a.window).start;
        const int groups = (most + GROUP_TOKENS - 1) / GROUP_TOKENS;
        const int begin = a.parts ? max(0, (int)blockIdx.z - group_number) : least / GROUP_TOKENS;
        const int end = a.parts ? min(groups, (int)blockIdx.z - group_number + 1) : groups;
        group_number += groups;
        if (begin >= end) continue;
        __syncthreads();
        load_queries(a, s, row, here_rows, my_span, kv, here.rotated);
        __syncthreads();
        const int *table = a.tables + (size_t)my_span * a.table_stride + here.first;
        const int up = g / group, down = (g + 8) / group;
        const seen none = {0, 0};
        const seen upper = up < here_rows ? here.by(first + up, a.window) : none;
        const seen lower = down < here_rows ? here.by(first + down, a.window) : none;
        share part;
        part.clear();
        for (int number = begin; number < end; number++) {
            const int from = number * GROUP_TOKENS, pieces = min(4, (most - from + PIECE - 1) / PIECE);
            if (warp < pieces) piece(a, s, table, kv, from + warp * PIECE, most, upper, lower);
            __syncthreads();
            share one;
            group_part(one, s, pieces);
            if (a.parts) {
                const int query = threadIdx.x >> 3, eighth = threadIdx.x & 7;
                float *to = a.parts + ((((size_t)blockIdx.x * a.kv_heads + kv) * a.most_groups + blockIdx.z) * QUERIES + query) *
                                          (DIM + 4);
#pragma unroll
                for (int i = 0; i < DIM / 32; i++) *(float4 *)(to + 32 * i + 4 * eighth) = *(float4 *)&one.o[4 * i];
                if (eighth == 0) to[DIM] = one.m, to[DIM + 1] = one.l;
                return;
            }
            part.merge(one);
            __syncthreads();
        }
        whole.merge(part);
    }
    if (!a.parts) write_answer(a, whole, row, here_rows, kv);
}

/* The parts of a tile's groups, merged as one block would have. */
KERNEL __launch_bounds__(128) merge_groups(ATTENTION_ARGUMENTS) {
    const attention a = ATTENTION;
    const int kv = blockIdx.y, query = threadIdx.x >> 3, eighth = threadIdx.x & 7;
    after_last();
    let_next_start();
    const int row = a.tile_row[blockIdx.x], here_rows = a.tile_rows[blockIdx.x];
    const int my_span = a.span[row], count = a.counts[my_span];
    share whole;
    whole.clear();
    int group_number = 0;
    for (int index = 0; index < count; index++) {
        const int most = segment_of(a, my_span, index).by(a.position[row] + here_rows - 1, a.window).end;
        const int groups = (most + GROUP_TOKENS - 1) / GROUP_TOKENS;
        share part;
        part.clear();
        for (int number = 0; number < groups; number++) {
            const float *from = a.parts + ((((size_t)blockIdx.x * a.kv_heads + kv) * a.most_groups + group_number + number) *
                                               QUERIES + query) * (DIM + 4);
            share one;
            one.m = from[DIM];
            one.l = from[DIM + 1];
#pragma unroll
            for (int i = 0; i < DIM / 32; i++) *(float4 *)&one.o[4 * i] = *(const float4 *)(from + 32 * i + 4 * eighth);
            part.merge(one);
        }
        group_number += groups;
        if (groups) whole.merge(part);
    }
    write_answer(a, whole, row, here_rows, kv);
}
