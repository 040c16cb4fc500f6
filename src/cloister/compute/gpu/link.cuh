/* The link between a service and an attention process, on the device: questions and answers never pass the host.
 *
 * A row has a box in memory that both processes map: questions [head][dim], answers [head][dim, m, l]. Every value is a
 * word of eight bytes: four of data and four of a number, written at once. A word is valid when its number is the one
 * waited for (1 + layer + step · layers), so nobody needs a fence or a second round trip for a flag.
 *
 * A step is announced before its first gate opens (`begin_step`), with the list of the slots that it asks: those it does
 * not ask cost nothing. A vault has several slots, for prompts that may have blocks in common.
 * `rotate_and_store` posts the queries; its last block to start opens the gate, for which the other process's stream
 * waits without holding a processor. `answer` never waits for a block that is not on the GPU, and `merge_with_vaults`
 * holds few registers and lets no product start before the answers are there: so neither can keep the other out. */

INLINE uint2 *box_of(const unsigned long long *boxes, int row) { return boxes ? (uint2 *)__ldcg(boxes + row) : nullptr; }
/* Behind the gates: the number of the step, and which slots it asks, each with that number. */
#define MOST_ASKED (32 * WARPS)
INLINE unsigned *announced(unsigned *gates, int layers) { return gates + layers * 16; }
INLINE const uint2 *asked_list(const unsigned *gates, int layers) { return (const uint2 *)(gates + (layers + 1) * 16); }
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

/* For rows of one token each, after `attend` left two parts: a row with a box takes the part of its private span from
 * there, and the three are merged in order. A silent vault fails its own row: `late` is set and the row asks no more. */
KERNEL __launch_bounds__(32 * WARPS, 8) merge_with_vaults(ATTENTION_ARGUMENTS, const unsigned long long *boxes,
                                                          const unsigned *steps, int layer, int layers, int *late,
                                                          long long patience_ns) {
    constexpr int HELD = 1; /* the caller sees to it that a KV head's queries fit */
    const attention a = ATTENTION;
    const int row = blockIdx.x, kv = blockIdx.y, queries = a.heads / a.kv_heads;
    const uint2 *box = box_of(boxes, row);
    const unsigned number = __ldcg(steps) * layers + layer + 1; /* before the wait: past the first-level cache */
    bool here = box && *(volatile int *)(late + row) == 0;
    after_last();
    EACH_FOUR(i, queries) {
        const int d = dim_of(i);
        const float *part = part_at(a, 0) + query_of(i) * (DIM + 4), *after = part + QUERIES * (DIM + 4);
        const float4 generated = *(const float4 *)(after + d);
        const float generated_m = after[DIM], generated_l = after[DIM + 1];
        share<1> whole;
        whole.clear();
        whole.merge(0, *(const float4 *)(part + d), part[DIM], part[DIM + 1]);
        if (here) {
            const uint2 *from = box + a.heads * DIM + (kv * queries + query_of(i)) * (DIM + 2);
            const unsigned long long since = now_ns();
            float4 o;
            float m, l;
            while (here) {
                const bool x = take_two(from + d, o.x, o.y, number), y = take_two(from + d + 2, o.z, o.w, number);
                if (take_two(from + DIM, m, l, number) && x && y) break;
                here = now_ns() - since < patience_ns;
                __nanosleep(100); /* who answers needs the memory's bandwidth */
            }
            if (here)
                whole.merge(0, o, m, l);
            else
                *(volatile int *)(late + row) = 1;
        }
        whole.merge(0, generated, generated_m, generated_l);
        write_four(a, whole.o[0], whole.l[0], row, query_of(i), d, kv);
    }
    __syncthreads(); /* a block counts as soon as one of its threads says so, and some have nothing to wait for */
    let_next_start(); /* not before: the next product's blocks would take the places of those that answer */
}

/* How many have come for this number so far. One that gave up at an earlier number leaves no trace. */
INLINE int count_in(unsigned *ticket, unsigned number) {
    unsigned found = *(volatile unsigned *)ticket, before, after;
    do {
        before = found;
        after = before >> 8 == (number & 0xffffff) ? before + 1 : (number << 8) + 1;
        found = atomicCAS(ticket, before, after);
    } while (found != before);
    return after & 255;
}

/* What is exposed in a slot, as its vault wrote it: another process, whose numbers are taken for bounded ones only. */
struct exposed {
    int length, unused[3];
    float cosine[DIM], sine[DIM];
    int table[1]; /* [blocks] of the slot's own cache */
};

/* What the blocks of one layer and slot share beside the attention's arguments. */
struct answering {
    unsigned *tickets;
    const exposed *slot;
    int user, kv, layers, layer, length, blocks;
    unsigned step;
    long long patience_ns;
    INLINE unsigned expected() const { return step * layers + layer + 1; }
};

#define GROUP_BLOCKS (GROUP_TOKENS / 16)

/* One group of a prompt. The last group of a user's KV head to be done merges all of them and answers. Nothing but the
 * slot's own cache is read, whatever its table says. */
INLINE void answer_group(const attention &a, const answering &w, uint2 *box, tile_shared &s, int *bounded, int &last,
                         int number, int groups) {
    constexpr int HELD = 1;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, user = w.user, kv = w.kv;
    const int length = w.length, queries = a.heads / a.kv_heads;
    if (threadIdx.x < GROUP_BLOCKS) {
        const int at = min(number * GROUP_BLOCKS + (int)threadIdx.x, w.blocks - 1);
        bounded[threadIdx.x] = min(max(__ldcg(w.slot->table + at), 0), w.blocks - 1);
    }
    __syncthreads();
    const int *table = bounded - number * GROUP_BLOCKS;
    const int from = number * GROUP_TOKENS + warp * PIECE, end = min(length, (number + 1) * GROUP_TOKENS);
    for (int at = from + 16 * (lane >> 3); at < end; at += TASKS * PIECE) {
        const bf16 *block = a.cache + table[at >> 4] * a.block_stride + (size_t)kv * 16 * DIM;
        for (int line = lane & 7; line < 16 * DIM * 2 / 128; line += 8) {
            prefetch(block + line * 64);
            prefetch(block + (size_t)a.kv_heads * 16 * DIM + line * 64);
        }
    }
    const unsigned expected = w.expected();
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
                here = now_ns() - since < w.patience_ns;
            }
            const float *c = w.slot->cosine + d, *z = w.slot->sine + d;
            const float u = x, v = y;
            x = __fsub_rn(__fmul_rn(u, __ldcg(c)), __fmul_rn(v, __ldcg(z)));
            y = __fadd_rn(__fmul_rn(v, __ldcg(c + DIM / 2)), __fmul_rn(u, __ldcg(z + DIM / 2)));
        }
        s.q[0][query][d] = rounded(x);
        s.q[0][query][d + DIM / 2] = rounded(y);
    }
    if (__syncthreads_or(!here)) return;
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
    if (threadIdx.x < GROUP_BLOCKS) ((volatile int *)bounded)[threadIdx.x] = 0;
    /* [user][kv head][group][query][dim + 4] */
    float *parts = a.parts + ((size_t)user * a.kv_heads + kv) * a.most_groups * queries * (DIM + 4);
    if (groups > 1) {
        EACH_FOUR(i, queries) {
            float *to = parts + (number * queries + query_of(i)) * (DIM + 4);
            *(float4 *)(to + dim_of(i)) = of_group.o[i];
            if (dim_of(i) == 0) to[DIM] = of_group.m[i], to[DIM + 1] = of_group.l[i];
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last = count_in(w.tickets + user * a.kv_heads + kv, expected) == groups;
        __syncthreads();
        if (!last) return;
        __threadfence();
    }
    EACH_FOUR(i, queries) {
        share<1> of_segment;
        of_segment.clear();
        if (groups == 1) of_segment.merge(0, of_group.o[i], of_group.m[i], of_group.l[i]);
        for (int g = 0; g < groups && groups > 1; g++) {
            const float *part = parts + (g * queries + query_of(i)) * (DIM + 4);
            of_segment.merge(0, __ldcg((const float4 *)(part + dim_of(i))), __ldcg(part + DIM), __ldcg(part + DIM + 1));
        }
        uint2 *to = box + a.heads * DIM + (kv * queries + query_of(i)) * (DIM + 2);
        post_two(to + dim_of(i), of_segment.o[0].x, of_segment.o[0].y, expected);
        post_two(to + dim_of(i) + 2, of_segment.o[0].z, of_segment.o[0].w, expected);
        if (dim_of(i) == 0) post_two(to + DIM, of_segment.m[0], of_segment.l[0], expected);
    }
}

/* The sum over the threads before this one and itself; `warps` is shared. */
INLINE int sum_until(int x, int *warps) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int o = 1; o < 32; o <<= 1) {
        const int before = __shfl_up_sync(~0u, x, o);
        if (lane >= o) x += before;
    }
    if (lane == 31) warps[warp] = x;
    __syncthreads();
    for (int w = 0; w < warp; w++) x += warps[w];
    return x;
}

/* One layer of who answers. The asked slots' groups, in the order of the list, are shared out among the blocks of a KV
 * head, whatever the grid. `rows` is the number of slots, `each` that of a vault's: its `exposed` lie together, and they
 * and its cache so many bytes after the vault's before. A slot that is asked with nothing exposed answers that there is
 * nothing. Shared memory is wiped: the next process on this processor could read it.
 *
 * `own` is the process's: the step it answers, and whether it is closing. A block of the last layer may start when the
 * service has its answers already and announces the next step: so all layers but the first go by their own word, and
 * nobody goes by a list of which a part may be the next step's. The first layer cannot be late: the service has no step
 * without all layers' answers. A closing vault answers nothing and leaves its gates open, so that what was launched
 * ahead comes to an end. */
KERNEL __launch_bounds__(32 * WARPS, 3) answer(ATTENTION_ARGUMENTS, const char *slots, size_t slot_stride,
                                               size_t cache_stride, int each, int exposed_bytes, int blocks,
                                               const unsigned long long *boxes, unsigned *gates, unsigned *tickets,
                                               unsigned *own, int layer, int layers, long long patience_ns) {
    __shared__ tile_shared s;
    __shared__ int last, bounded[GROUP_BLOCKS], warps[WARPS];
    __shared__ int4 chosen; /* slot, length, group, groups */
    attention a = ATTENTION;
    const unsigned closing = ((volatile unsigned *)own)[1];
    const unsigned step = layer ? ((volatile unsigned *)own)[0] : *(volatile unsigned *)announced(gates, layers);
    if (__syncthreads_or(closing)) return;
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) {
        ((volatile unsigned *)gates)[layer * 16] = 0; /* closed again */
        if (layer == 0) ((volatile unsigned *)own)[0] = step;
    }
    /* Each thread looks at one that may be asked. */
    unsigned slot, number;
    asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];"
                 : "=r"(slot), "=r"(number)
                 : "l"(asked_list(gates, layers) + threadIdx.x)
                 : "memory");
    __threadfence(); /* announced before it is written: where the number is still this step's, so was the list */
    const bool over = *(volatile unsigned *)announced(gates, layers) != step;
    const bool asked = step && number == step && slot < (unsigned)a.rows;
    const char *vaults = slots + (asked ? slot / each * slot_stride + slot % each * exposed_bytes : 0);
    int length = asked ? __ldcg(&((const exposed *)vaults)->length) : 0;
    length = min(max(length, 0), min(blocks * 16, a.most_groups * GROUP_TOKENS));
    const int mine = asked ? max(1, (length + GROUP_TOKENS - 1) / GROUP_TOKENS) : 0;
    if (__syncthreads_or(over)) return;
    const int end = sum_until(mine, warps);
    if (threadIdx.x == 32 * WARPS - 1) last = end;
    __syncthreads();
    const int all = last;
    for (int item = blockIdx.z * gridDim.x + blockIdx.x; item < all; item += gridDim.x * gridDim.z) {
        __syncthreads();
        if (item < end && item >= end - mine) chosen = make_int4(slot, length, item - (end - mine), mine);
        __syncthreads();
        const int4 now = chosen;
        const exposed *here = (const exposed *)(slots + now.x / each * slot_stride + now.x % each * exposed_bytes);
        a.cache = (const bf16 *)((const char *)cache + now.x / each * cache_stride);
        const answering w = {tickets, here, now.x, (int)blockIdx.y, layers, layer, now.y, blocks, step, patience_ns};
        answer_group(a, w, box_of(boxes, now.x), s, bounded, last, now.z, now.w);
    }
    if (threadIdx.x == 0) *(volatile int *)&chosen.y = 0, *(volatile int *)&chosen.w = 0;
}

/* Begins a step: its number, from 1 on, beside the gates of everyone who is asked, then the slots. `asks` is [box, gates,
 * word of the list, slot][row] (mailbox.py). */
KERNEL begin_step(const unsigned long long *asks, int rows, unsigned *steps, unsigned *started, int *late, int layers) {
    after_last();
    let_next_start();
    const unsigned long long *gates = asks + rows, *listed = gates + rows, *slots = listed + rows;
    const unsigned step = *steps + 1;
    __syncthreads();
    for (int i = threadIdx.x; i < rows; i += blockDim.x) {
        late[i] = 0;
        if (gates[i]) *(volatile unsigned *)announced((unsigned *)gates[i], layers) = step;
    }
    __threadfence();
    __syncthreads();
    for (int i = threadIdx.x; i < rows; i += blockDim.x)
        if (listed[i]) post((uint2 *)listed[i], __uint_as_float((unsigned)slots[i]), step);
    for (int i = threadIdx.x; i < layers; i += blockDim.x) started[i] = 0;
    if (threadIdx.x == 0) *steps = step;
}
