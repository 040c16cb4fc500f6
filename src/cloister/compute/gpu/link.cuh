/* The link between a service and an attention process, on the device: questions and answers never pass the host.
 *
 * A row has a box in memory that both processes map: questions [head][dim], answers [head][dim, m, l]. Every value is a
 * word of eight bytes: four of data and four of a number, written at once. A word is valid when its number is the one
 * waited for (1 + layer + step · layers), so nobody needs a fence or a second round trip for a flag.
 *
 * `rotate_and_store` posts the queries; its last block to start opens the gate, for which the other process's stream
 * waits without holding a processor. `answer` never waits for a block that is not on the GPU, and `merge_with_vaults`
 * holds few registers and lets no product start before the answers are there: so neither can keep the other out. */

INLINE uint2 *box_of(const unsigned long long *boxes, int row) { return boxes ? (uint2 *)boxes[row] : nullptr; }
INLINE void post_two(uint2 *at, float x, float y, unsigned number) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%2};" ::"l"(at), "r"(__float_as_uint(x)), "r"(number),
                 "r"(__float_as_uint(y))
                 : "memory");
}
INLINE bool take_two(const uint2 *at, float &x, float &y, unsigned number) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    x = __uint_as_float(v.x);
    y = __uint_as_float(v.z);
    return v.y == number && v.w == number;
}
INLINE bool take(const uint2 *at, float &x, unsigned number) {
    unsigned value, found;
    asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];" : "=r"(value), "=r"(found) : "l"(at) : "memory");
    x = __uint_as_float(value);
    return found == number;
}
INLINE unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* As merge_groups, for rows of one token each; a row with a box takes the part of its private span from there, between
 * the public and the generated one. A silent vault fails its own row: `late` is set and the row asks no more. */
KERNEL __launch_bounds__(32 * WARPS, 8) merge_with_vaults(ATTENTION_ARGUMENTS, const unsigned long long *boxes,
                                                          const unsigned *steps, int layer, int layers, int *late,
                                                          long long patience_ns) {
    constexpr int HELD = 1; /* the caller sees to it that a KV head's queries fit */
    const attention a = ATTENTION;
    const int row = blockIdx.x, kv = blockIdx.y, queries = a.heads / a.kv_heads, my_span = a.span[row];
    after_last();
    const int count = a.counts[my_span];
    share<HELD> whole;
    whole.clear();
    int before = 0;
    for (int index = 0; index < count; index++) {
        uint2 *box = box_of(boxes, row);
        if (index + 1 == count && box) {
            const unsigned number = *steps * layers + layer + 1;
            const unsigned long long since = now_ns();
            bool here = *(volatile int *)(late + row) == 0;
            EACH_FOUR(i, queries) {
                const uint2 *from = box + a.heads * DIM + (kv * queries + query_of(i)) * (DIM + 2);
                float4 o;
                float m, l;
                while (here) {
                    const bool x = take_two(from + dim_of(i), o.x, o.y, number);
                    const bool y = take_two(from + dim_of(i) + 2, o.z, o.w, number);
                    if (take_two(from + DIM, m, l, number) && x && y) break;
                    here = now_ns() - since < patience_ns;
                }
                if (here) whole.merge(i, o, m, l);
            }
            if (!here) *(volatile int *)(late + row) = 1;
        }
        const int most = segment_of(a, my_span, index).by(a.position[row], a.window).end;
        const int groups = (most + GROUP_TOKENS - 1) / GROUP_TOKENS;
        share<HELD> of_segment;
        of_segment.clear();
        for (int number = 0; number < groups; number++)
            EACH_FOUR(i, queries) {
                const float *from = part_at(a, before + number) + query_of(i) * (DIM + 4);
                of_segment.merge(i, *(const float4 *)(from + dim_of(i)), from[DIM], from[DIM + 1]);
            }
        before += groups;
        if (groups) EACH_FOUR(i, queries) whole.merge(i, of_segment);
    }
    let_next_start(); /* not before: the next product's blocks would take the places of those that answer */
    write_answer(a, whole, row, queries, kv);
}

/* One layer of an attention process: a block for each user, KV head and group of its prompt; the last to be done merges
 * the groups and answers. `position` holds the prompts' lengths. Shared memory is wiped: the next process on this
 * processor could read it. */
KERNEL __launch_bounds__(32 * WARPS, 3) answer(ATTENTION_ARGUMENTS, const unsigned long long *boxes, const unsigned *steps,
                                               unsigned *gate, unsigned *tickets, int layer, int layers,
                                               long long patience_ns) {
    constexpr int HELD = 1;
    __shared__ tile_shared s;
    __shared__ int last;
    const attention a = ATTENTION;
    const int user = blockIdx.x, kv = blockIdx.y, number = blockIdx.z, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int length = a.position[user], groups = (length + GROUP_TOKENS - 1) / GROUP_TOKENS, queries = a.heads / a.kv_heads;
    if (number >= groups) return;
    const int *table = a.tables + (size_t)user * a.table_stride;
    const int from = number * GROUP_TOKENS + warp * PIECE, end = min(length, (number + 1) * GROUP_TOKENS);
    for (int at = from + 16 * (lane >> 3); at < end; at += TASKS * PIECE) {
        const bf16 *block = a.cache + table[at >> 4] * a.block_stride + (size_t)kv * 16 * DIM;
        for (int line = lane & 7; line < 16 * DIM * 2 / 128; line += 8) {
            prefetch(block + line * 64);
            prefetch(block + (size_t)a.kv_heads * 16 * DIM + line * 64);
        }
    }
    uint2 *box = box_of(boxes, user);
    const unsigned expected = *steps * layers + layer + 1;
    const unsigned long long since = now_ns();
    bool here = true;
    for (int i = threadIdx.x; i < QUERIES * DIM / 2; i += 32 * WARPS) {
        const int query = i / (DIM / 2), d = i % (DIM / 2);
        float x = 0.0f, y = 0.0f;
        if (query < queries) {
            const uint2 *asked = box + (kv * queries + query) * DIM + d;
            while (here) {
                const bool first = take(asked, x, expected);
                if (take(asked + DIM / 2, y, expected) && first) break;
                here = now_ns() - since < patience_ns;
            }
            const float *c = a.rotation_cosine + (size_t)user * DIM + d, *z = a.rotation_sine + (size_t)user * DIM + d;
            const float u = x, v = y;
            x = __fsub_rn(__fmul_rn(u, c[0]), __fmul_rn(v, z[0]));
            y = __fadd_rn(__fmul_rn(v, c[DIM / 2]), __fmul_rn(u, z[DIM / 2]));
        }
        s.q[0][query][d] = rounded(x);
        s.q[0][query][d + DIM / 2] = rounded(y);
    }
    if (__syncthreads_or(!here)) return;
    if (threadIdx.x == 0 && user == 0 && kv == 0 && number == 0) *(volatile unsigned *)gate = 0; /* closed until the next step */
    const int active = min(TASKS, (length - number * GROUP_TOKENS + PIECE - 1) / PIECE);
    if (warp < active) {
        const seen all = {0, length}, none = {0, 0};
        lane_part part = {};
        part.m[0] = part.m[1] = NOTHING;
        for (int at = from; at < end; at += TASKS * PIECE)
            piece(part, a, s.q[0], table, kv, at, length, (lane >> 2) < queries ? all : none,
                  (lane >> 2) + 8 < queries ? all : none);
        hand_over(part, s, queries);
    }
    __syncthreads();
    share<HELD> of_group;
    of_group.clear();
    for (int w = 0; w < active; w++)
        EACH_FOUR(i, queries) {
            const int query = query_of(i);
            of_group.merge(i, *(const float4 *)&s.o[w][query][dim_of(i)], s.m[w][query], s.l[w][query]);
        }
    __syncthreads();
    for (int i = threadIdx.x; i < (int)(sizeof(s) / 4); i += 32 * WARPS) ((volatile unsigned *)&s)[i] = 0;
    if (groups > 1) {
        EACH_FOUR(i, queries) {
            float *to = part_at(a, number) + query_of(i) * (DIM + 4);
            *(float4 *)(to + dim_of(i)) = of_group.o[i];
            if (dim_of(i) == 0) to[DIM] = of_group.m[i], to[DIM + 1] = of_group.l[i];
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            last = atomicAdd(tickets + user * a.kv_heads + kv, 1) + 1 == groups;
            if (last) tickets[user * a.kv_heads + kv] = 0;
        }
        __syncthreads();
        if (!last) return;
        __threadfence();
    }
    EACH_FOUR(i, queries) {
        share<1> of_segment;
        of_segment.clear();
        if (groups == 1) of_segment.merge(0, of_group.o[i], of_group.m[i], of_group.l[i]);
        for (int g = 0; g < groups && groups > 1; g++) {
            const float *part = part_at(a, g) + query_of(i) * (DIM + 4);
            of_segment.merge(0, __ldcg((const float4 *)(part + dim_of(i))), __ldcg(part + DIM), __ldcg(part + DIM + 1));
        }
        uint2 *to = box + a.heads * DIM + (kv * queries + query_of(i)) * (DIM + 2);
        post_two(to + dim_of(i), of_segment.o[0].x, of_segment.o[0].y, expected);
        post_two(to + dim_of(i) + 2, of_segment.o[0].z, of_segment.o[0].w, expected);
        if (dim_of(i) == 0) post_two(to + DIM, of_segment.m[0], of_segment.l[0], expected);
    }
}

KERNEL next_step(unsigned *steps) {
    after_last();
    if (threadIdx.x == 0) *steps += 1;
}
