/* Causal attention over a paged cache: Petridish's Theorem 1, with one order of arithmetic for every query.
 *
 * Sixteen queries (neighbouring rows × the heads of one KV head) go through the tensor cores together. A segment is cut
 * from its own beginning into groups of 512 positions, and a group into eight pieces of 64. A piece is one pass of a
 * warp: all scores, one maximum, one sum. Pieces w and w + 4 of a group are one task: a warp adds the second to the
 * first. Then the four tasks of a group are merged in order, the groups of a segment, and the segments (public, private,
 * generated). What a query does not see adds exact zeros, so neither its neighbours in a tile, nor the chunking, nor
 * which warp or block does a task leaves a trace in its result.
 *
 * A part is (O, m, l): O = Σ exp2(s - m)·V, not divided yet; m the largest score, in base 2; l = Σ exp2(s - m). */
#define QUERIES 16
#define BEFORE_AND_AFTER 2
#define PIECE 64
#define WARPS 4
#define TASKS 4 /* of a whole group */
#define GROUP_TOKENS (2 * TASKS * PIECE)
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
    float *parts; /* [tile][kv head][most_groups][16][dim + 4]; null: one block walks all groups and is done */
    bf16 *out;    /* [heads · dim / 8][rows][8] */
    size_t block_stride;
    int table_stride, rows, heads, kv_heads, window;
    int most_groups; /* places for parts; BEFORE_AND_AFTER: one for the segments before the last, one for that */
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
    const int4 s = __ldcg((const int4 *)(a.segments + (span * 3 + index) * 4));
    return {s.x, s.y, s.z, s.w};
}

struct tile_shared {
    float o[4][QUERIES][PITCH], m[4][QUERIES], l[4][QUERIES];
    bf16 q[2][QUERIES][Q_PITCH]; /* as they are, and rotated on */
};

/* One thread's share of a part: of all queries × dims, fours of dims dealt out one after the other. */
#define FOURS (DIM / 4)
#define MOST_FOURS (QUERIES * FOURS / (32 * WARPS))
template <int HELD> struct share {
    float4 o[HELD];
    float m[HELD], l[HELD];
    INLINE void empty(int i) { o[i] = make_float4(0, 0, 0, 0), m[i] = NOTHING, l[i] = 0.0f; }
    INLINE void clear() {
#pragma unroll
        for (int i = 0; i < HELD; i++) empty(i);
    }
    INLINE void merge(int i, float4 v, float its_m, float its_l) {
        const float top = fmaxf(m[i], its_m), mine = exp2f(m[i] - top), its = exp2f(its_m - top);
        o[i].x = __fadd_rn(__fmul_rn(o[i].x, mine), __fmul_rn(v.x, its));
        o[i].y = __fadd_rn(__fmul_rn(o[i].y, mine), __fmul_rn(v.y, its));
        o[i].z = __fadd_rn(__fmul_rn(o[i].z, mine), __fmul_rn(v.z, its));
        o[i].w = __fadd_rn(__fmul_rn(o[i].w, mine), __fmul_rn(v.w, its));
        l[i] = __fadd_rn(__fmul_rn(l[i], mine), __fmul_rn(its_l, its));
        m[i] = top;
    }
    INLINE void merge(int i, const share &next) { merge(i, next.o[i], next.m[i], next.l[i]); }
};
/* For each of this thread's fours of `queries` queries, of which it holds HELD at most. */
#define EACH_FOUR(i, queries)                    \
    _Pragma("unroll") for (int i = 0; i < HELD; i++) \
        if (threadIdx.x + 32 * WARPS * i < (queries) * FOURS)
INLINE int query_of(int i) { return (threadIdx.x + 32 * WARPS * i) / FOURS; }
INLINE int dim_of(int i) { return (threadIdx.x + 32 * WARPS * i) % FOURS * 4; }

INLINE void load_queries(const attention &a, tile_shared &s, int row, int queries, int span, int kv, bool rotated) {
    const int group = a.heads / a.kv_heads;
    for (int i = threadIdx.x; i < QUERIES * DIM / 2; i += 32 * WARPS) {
        const int query = i / (DIM / 2), d = i % (DIM / 2);
        float x = 0.0f, y = 0.0f;
        if (query < queries) {
            const float *from = a.q + ((size_t)(row + query / group) * a.heads + kv * group + query % group) * DIM + d;
            x = from[0];
            y = from[DIM / 2];
        }
        s.q[0][query][d] = rounded(x);
        s.q[0][query][d + DIM / 2] = rounded(y);
        if (rotated) {
            const float *c = a.rotation_cosine + (size_t)span * DIM + d, *z = a.rotation_sine + (size_t)span * DIM + d;
            s.q[1][query][d] = rounded(__fsub_rn(__fmul_rn(x, c[0]), __fmul_rn(y, z[0])));
            s.q[1][query][d + DIM / 2] = rounded(__fadd_rn(__fmul_rn(y, c[DIM / 2]), __fmul_rn(x, z[DIM / 2])));
        }
    }
}

/* What a warp's lane holds of sixteen queries: two rows of them, g and g + 8; of O, two neighbouring dims of eight. Where
 * there are eight queries at most (ROWS = 1) it holds the first alone, in half the registers. */
template <int ROWS, int EIGHTS = DIM / 8> struct lane_part {
    float o[EIGHTS][2 * ROWS], m[ROWS], l[ROWS];
    INLINE void clear() {
#pragma unroll
        for (int i = 0; i < EIGHTS; i++)
#pragma unroll
            for (int e = 0; e < 2 * ROWS; e++) o[i][e] = 0.0f;
#pragma unroll
        for (int h = 0; h < ROWS; h++) m[h] = NOTHING, l[h] = 0.0f;
    }
};

/* What is seen of 64 positions' scores becomes weights; what a part held before shrinks as its greatest score grows. */
template <int ROWS, int EIGHTS>
INLINE void weigh(lane_part<ROWS, EIGHTS> &part, float (&score)[4][2][2 * ROWS], int from, seen upper, seen lower, float scale) {
    const int t = threadIdx.x & 3;
    float top[ROWS], total[ROWS], shrink[ROWS];
#pragma unroll
    for (int h = 0; h < ROWS; h++) top[h] = NOTHING, total[h] = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int i = 0; i < 2 * ROWS; i++) {
                const int at = from + 16 * j + 4 * t + 2 * e + (i & 1);
                const seen by = i < 2 ? upper : lower;
                float &x = score[j][e][i];
                x = at >= by.start && at < by.end ? __fmul_rn(x, scale) : NOTHING;
                top[i >> 1] = fmaxf(top[i >> 1], x);
            }
#pragma unroll
    for (int h = 0; h < ROWS; h++) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
        top[h] = fmaxf(part.m[h], fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 2)));
        shrink[h] = exp2f(part.m[h] - top[h]);
        part.m[h] = top[h];
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int i = 0; i < 2 * ROWS; i++) {
                float &x = score[j][e][i];
                x = x == NOTHING ? 0.0f : exp2f(x - top[i >> 1]);
                total[i >> 1] = __fadd_rn(total[i >> 1], x);
            }
#pragma unroll
    for (int h = 0; h < ROWS; h++) {
        total[h] = __fadd_rn(total[h], __shfl_xor_sync(~0u, total[h], 1));
        total[h] = __fadd_rn(total[h], __shfl_xor_sync(~0u, total[h], 2));
        part.l[h] = __fadd_rn(__fmul_rn(part.l[h], shrink[h]), total[h]);
    }
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
#pragma unroll
        for (int e = 0; e < 2 * ROWS; e++) part.o[i][e] = __fmul_rn(part.o[i][e], shrink[e >> 1]);
    }
}

/* The weights of sixteen positions, as the tensor cores take them, times sixteen bytes of values. */
template <int ROWS> struct weights {
    unsigned p0, p1, p2, p3;
    INLINE weights(const float (&score)[2][2 * ROWS]) {
        p0 = rounded(score[0][0], score[0][1]), p2 = rounded(score[1][0], score[1][1]);
        p1 = ROWS > 1 ? rounded(score[0][2 * ROWS - 2], score[0][2 * ROWS - 1]) : 0;
        p3 = ROWS > 1 ? rounded(score[1][2 * ROWS - 2], score[1][2 * ROWS - 1]) : 0;
    }
    INLINE void times(float (*o)[2 * ROWS], uint4 v) const {
        multiply<ROWS>(o[0], p0, p1, p2, p3, v.x, v.y);
        multiply<ROWS>(o[1], p0, p1, p2, p3, v.z, v.w);
    }
};

/* Eight times sixteen bytes of keys or values, read past the first-level cache: another process may have written them
 * since a kernel of this one was here. In the order in which they are written: all are on their way before the first is
 * used. */
struct eight_words {
    uint4 at[DIM / 16];
    INLINE void read(const bf16 *from, int step, int pair) {
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            const bf16 *p = from + (i >> 1) * step + (i & 1) * pair;
            asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(at[i].x), "=r"(at[i].y), "=r"(at[i].z), "=r"(at[i].w)
                         : "l"(p)
                         : "memory");
        }
    }
};

/* One warp: adds what the tile's queries find in 64 positions from `from` on: four blocks, whose keys and then values are
 * each read while the block before is multiplied. Behind the last position that counts the first block is read again. */
template <int ROWS>
INLINE void piece(lane_part<ROWS> &part, const attention &a, const bf16 (*q)[Q_PITCH], const int *table, int kv, int from, int most,
                  seen upper, seen lower) {
    constexpr int AHEAD = ROWS > 1 ? 0 : 1; /* where there are registers for two */
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float score[4][2][2 * ROWS] = {};
    const bf16 *block[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int at = from + 16 * j;
        block[j] = a.cache + table[(at < most ? at : from) >> 4] * a.block_stride + (size_t)kv * 16 * DIM;
    }
    const int key = (4 * (g >> 1) + (g & 1)) * DIM + 8 * t, value = a.kv_heads * 16 * DIM + lane * 8;
    eight_words held[AHEAD + 1];
    if (AHEAD) held[0].read(block[0] + key, 32, 2 * DIM);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (!AHEAD) held[0].read(block[j] + key, 32, 2 * DIM);
        else if (j < 3) held[(j + 1) % (AHEAD + 1)].read(block[j + 1] + key, 32, 2 * DIM);
        else held[0].read(block[0] + value, 512, 256);
        if (from + 16 * j < most) {
#pragma unroll
            for (int c = 0; c < DIM / 32; c++) {
                const uint4 high = *(const uint4 *)&q[g][32 * c + 8 * t];
                const uint4 low = ROWS > 1 ? *(const uint4 *)&q[g + 8][32 * c + 8 * t] : make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int e = 0; e < 2; e++) multiply_32<ROWS>(score[j][e], high, low, held[j % (AHEAD + 1)].at[2 * c + e]);
            }
        }
    }
    weigh(part, score, from, upper, lower, a.scale);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (!AHEAD) held[0].read(block[j] + value, 512, 256);
        else if (j < 3) held[(j + 1) % (AHEAD + 1)].read(block[j + 1] + value, 512, 256);
        if (from + 16 * j < most) {
            const weights<ROWS> of(score[j]);
#pragma unroll
            for (int i = 0; i < DIM / 16; i++) of.times(part.o + 2 * i, held[j % (AHEAD + 1)].at[i]);
        }
    }
}

template <int ROWS> INLINE void hand_over(const lane_part<ROWS> &part, tile_shared &s, int queries) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int h = 0; h < ROWS; h++) {
        const int query = g + 8 * h;
        if (query >= queries) continue;
#pragma unroll
        for (int i = 0; i < DIM / 8; i++)
            *(float2 *)&s.o[warp][query][8 * i + 2 * t] = make_float2(part.o[i][2 * h], part.o[i][2 * h + 1]);
        if (t == 0) s.m[warp][query] = part.m[h], s.l[warp][query] = part.l[h];
    }
}

INLINE void write_four(const attention &a, float4 o, float sum, int row, int query, int d, int kv) {
    const int group = a.heads / a.kv_heads;
    const float l = sum > 0.0f ? sum : 1.0f;
    *(uint2 *)(a.out + place(row + query / group, (kv * group + query % group) * DIM + d, a.rows)) =
        make_uint2(rounded(__fdiv_rn(o.x, l), __fdiv_rn(o.y, l)), rounded(__fdiv_rn(o.z, l), __fdiv_rn(o.w, l)));
}
template <int HELD>
INLINE void write_answer(const attention &a, const share<HELD> &whole, int row, int queries, int kv) {
    EACH_FOUR(i, queries) write_four(a, whole.o[i], whole.l[i], row, query_of(i), dim_of(i), kv);
}

#define ATTENTION_ARGUMENTS                                                                                            \
    const float *q, const bf16 *cache, const int *span, const int *position, const int *tile_row, const int *tile_rows, \
        const int *tables, const int *segments, const int *counts, const float *rotation_cosine,                       \
        const float *rotation_sine, float *parts, bf16 *out, size_t block_stride, int table_stride, int rows,          \
        int heads, int kv_heads, int window, int most_groups, float scale
#define ATTENTION                                                                                                       \
    {q, cache, span, position, tile_row, tile_rows, tables, segments, counts, rotation_cosine, rotation_sine, parts,    \
     out, block_stride, table_stride, rows, heads, kv_heads, window, most_groups, scale}

/* The number and place of a tile's parts: [tile][kv head][group][query][dim + 4]. */
INLINE float *part_at(const attention &a, int number) {
    const size_t tile = (size_t)blockIdx.x * a.kv_heads + blockIdx.y;
    return a.parts + (tile * a.most_groups + number) * QUERIES * (DIM + 4);
}

template <int HELD> INLINE void keep_part(const attention &a, int number, int i, const share<HELD> &part) {
    float *to = part_at(a, number) + query_of(i) * (DIM + 4);
    *(float4 *)(to + dim_of(i)) = part.o[i];
    if (dim_of(i) == 0) to[DIM] = part.m[i], to[DIM + 1] = part.l[i];
}

/* A tile's tasks: those of each segment in order. */
struct tasks {
    segment of[3];
    int most[3], count[3], segments, rotated; /* positions of a segment that the tile sees at most; its tasks */

    INLINE tasks(const attention &a, int span, int first, int last) : segments(__ldcg(a.counts + span)), rotated(0) {
#pragma unroll
        for (int i = 0; i < 3; i++) {
            count[i] = 0;
            if (i >= segments) continue;
            of[i] = segment_of(a, span, i);
            most[i] = of[i].by(last, a.window).end;
            const int rest = most[i] % GROUP_TOKENS;
            count[i] = most[i] / GROUP_TOKENS * TASKS + min(TASKS, (rest + PIECE - 1) / PIECE);
            rotated |= of[i].rotated;
        }
    }
    INLINE int all() const { return count[0] + count[1] + count[2]; }
    /* The segment of a task, whose number becomes that within the segment. */
    INLINE int find(int &task) const {
        int i = 0;
        if (task >= count[0]) task -= count[0], i = 1;
        if (i == 1 && task >= count[1]) task -= count[1], i = 2;
        return i;
    }
    INLINE segment segment_at(int i) const { return i == 0 ? of[0] : i == 1 ? of[1] : of[2]; }
    INLINE int most_at(int i) const { return i == 0 ? most[0] : i == 1 ? most[1] : most[2]; }
    INLINE int count_at(int i) const { return i == 0 ? count[0] : i == 1 ? count[1] : count[2]; }
};

INLINE void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

template <int HELD> INLINE void attend_tile(const attention &a) {
    constexpr int ROWS = HELD > 1 ? 2 : 1; /* one: 512 values of queries at most, so eight queries */
    __shared__ tile_shared s;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, kv = blockIdx.y;
    /* What follows was written before the kernel before this one, which waited for it: it may be read already, but past
     * the first-level cache, which `after_last` has not emptied yet: it may hold the last step's. */
    const int row = __ldcg(a.tile_row + blockIdx.x), height = __ldcg(a.tile_rows + blockIdx.x);
    const int group = a.heads / a.kv_heads, span = __ldcg(a.span + row), first = __ldcg(a.position + row);
    const int last = first + height - 1, queries = height * group;
    const tasks all(a, span, first, last);
    const int *tables = a.tables + (size_t)span * a.table_stride;
    int begin = 0, end = all.all();
    const bool two = a.parts && a.most_groups == BEFORE_AND_AFTER, one_group = a.parts && !two;
    if (one_group) { /* only the tasks of group number blockIdx.z */
        int number = blockIdx.z, before = 0, i = 0;
        for (; i < all.segments; i++) {
            const int groups = (all.count_at(i) + TASKS - 1) / TASKS;
            if (number < groups) break;
            number -= groups;
            before += all.count_at(i);
        }
        begin = i < all.segments ? before + number * TASKS : end;
        if (i < all.segments) end = min(before + all.count_at(i), begin + TASKS);
    }
    if (begin + warp < end) {
        int task = begin + warp;
        const int i = all.find(task), from = task / TASKS * GROUP_TOKENS + task % TASKS * PIECE;
        const int at = from + 16 * (lane >> 3); /* eight lanes for each block of 16 positions */
        if (at < all.most_at(i)) {
            const bf16 *block = a.cache + __ldcg(tables + all.segment_at(i).first + (at >> 4)) * a.block_stride + (size_t)kv * 16 * DIM;
            for (int line = lane & 7; line < 16 * DIM * 2 / 128; line += 8) {
                prefetch(block + line * 64);
                prefetch(block + (size_t)a.kv_heads * 16 * DIM + line * 64);
            }
        }
    }
    after_last();
    let_next_start();
    load_queries(a, s, row, queries, span, kv, all.rotated);
    __syncthreads();
    const int up = g / group, down = (g + 8) / group;
    share<HELD> whole, of_segment, of_group;
    whole.clear(), of_segment.clear(), of_group.clear();
    for (int round = begin; round < end; round += WARPS) {
        if (round + warp < end) {
            int task = round + warp;
            const int i = all.find(task), most = all.most_at(i), from = task / TASKS * GROUP_TOKENS + task % TASKS * PIECE;
            const segment here = all.segment_at(i);
            const seen none = {0, 0};
            const seen upper = up < height ? here.by(first + up, a.window) : none;
            const seen lower = down < height ? here.by(first + down, a.window) : none;
            lane_part<ROWS> part;
            part.clear();
            for (int at = from; at < min(most, from + 2 * TASKS * PIECE - task % TASKS * PIECE); at += TASKS * PIECE)
                piece(part, a, s.q[here.rotated ? 1 : 0], tables + here.first, kv, at, most, upper, lower);
            hand_over(part, s, queries);
        }
        __syncthreads();
        for (int w = 0; w < min(WARPS, end - round); w++) {
            int task = round + w;
            const int i = all.find(task), count = all.count_at(i);
            const bool ends_segment = task + 1 == count, ends_group = ends_segment || task % TASKS == TASKS - 1;
            EACH_FOUR(j, queries) {
                const int query = query_of(j);
                of_group.merge(j, *(const float4 *)&s.o[w][query][dim_of(j)], s.m[w][query], s.l[w][query]);
                if (one_group || !ends_group) continue;
                of_segment.merge(j, of_group);
                of_group.empty(j);
                if (!ends_segment || (two && i + 1 == all.segments)) continue;
                whole.merge(j, of_segment);
                of_segment.empty(j);
            }
        }
        __syncthreads();
    }
    if (!a.parts)
        write_answer(a, whole, row, queries, kv);
    else if (two || begin < end)
        EACH_FOUR(j, queries) {
            if (two) {
                keep_part(a, 0, j, whole);
                keep_part(a, 1, j, of_segment);
            } else
                keep_part(a, blockIdx.z, j, of_group);
        }
}

#define ATTEND(held, blocks) \
    KERNEL __launch_bounds__(32 * WARPS, blocks) attend_##held(ATTENTION_ARGUMENTS) { attend_tile<held>(ATTENTION); }
ATTEND(1, 3)
ATTEND(2, 3)
ATTEND(4, 2)

/* The parts of a tile's groups, merged as one block would have. */
KERNEL __launch_bounds__(32 * WARPS) merge_groups(ATTENTION_ARGUMENTS) {
    constexpr int HELD = MOST_FOURS;
    const attention a = ATTENTION;
    const int kv = blockIdx.y;
    after_last();
    let_next_start();
    const int row = a.tile_row[blockIdx.x], tile_height = a.tile_rows[blockIdx.x];
    const int my_span = a.span[row], count = a.counts[my_span], queries = tile_height * (a.heads / a.kv_heads);
    share<HELD> whole;
    whole.clear();
    int before = 0;
    for (int index = 0; index < count; index++) {
        const int most = segment_of(a, my_span, index).by(a.position[row] + tile_height - 1, a.window).end;
        const int groups = (most + GROUP_TOKENS - 1) / GROUP_TOKENS;
        share<HELD> of_segment;
        of_segment.clear();
#pragma unroll 4
        for (int number = 0; number < groups; number++)
            EACH_FOUR(i, queries) {
                const float *from = part_at(a, before + number) + query_of(i) * (DIM + 4);
                of_segment.merge(i, *(const float4 *)(from + dim_of(i)), from[DIM], from[DIM + 1]);
            }
        before += groups;
        if (groups) EACH_FOUR(i, queries) whole.merge(i, of_segment);
    }
    write_answer(a, whole, row, queries, kv);
}
