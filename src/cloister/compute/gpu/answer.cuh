/* Who answers for prompts (link.cuh): one kernel for all layers of a step, or for one.
 *
 * A group of a prompt and a KV head are an item, a block's work; or a task of it, where there are blocks for that. Its
 * pieces of 64 positions come one after the other, and four warps share each: a warp has the scores of sixteen positions,
 * then a quarter of the values' dims. Who is done last merges all. Every sum has `attend`'s order, so an answer has the
 * bits that it has where nobody is asked.
 *
 * Where there is little to read the kernel stays until the step is over. Its blocks, of all processes, are no more than
 * processors (answering.py), and the service's products of up to 64 rows leave registers and shared memory for one beside
 * them (linear.cuh): so neither keeps the other out. Keys and values are fetched when a layer begins, before its queries are
 * there. Where there is more, or no such room, it is launched for every layer, with more blocks, and waits for that layer's
 * gate. */
#define ANSWERED (MOST_VALUES / DIM)
#define CHUNKS (DIM / 64) /* of sixteen dims, of a warp's values */
#define PLACE_BYTES (16 * DIM * 2)
#define MOST_STAYING 4 /* pieces for each block, where blocks stay: more are read faster by more blocks */
#define KEPT 16 /* items whose queries a block keeps until it hashes them (answering.py): of a layer, mostly all */
#define UNRECORDED (1u << 31)
#define MORE_PATIENCE 4 /* with the service, than it has with anyone: it may be waiting for another */

/* What is exposed in a slot, as its vault wrote it: another process, whose numbers are taken for bounded ones only. */
struct exposed {
    int length, recorded, unused[2]; /* `recorded`: what is asked is hashed */
    float cosine[DIM], sine[DIM];
    int table[1]; /* [blocks] of the slot's own cache */
};

/* Where all that is exposed lies: `each` slots of a vault together, and they and its cache so many bytes after the vault's
 * before. Nothing but a slot's own cache is read, whatever its table says. */
struct arenas {
    const char *slots;
    const bf16 *cache; /* the first vault's, of the layer at hand */
    size_t slot_stride, cache_stride, block_stride;
    int each, exposed_bytes, blocks;
    INLINE const exposed *at(int slot) const {
        return (const exposed *)(slots + slot / each * slot_stride + slot % each * exposed_bytes);
    }
    INLINE int block(int slot, int position) const {
        return min(max(__ldcg(at(slot)->table + min(position >> 4, blocks - 1)), 0), blocks - 1);
    }
    INLINE const bf16 *block_at(int slot, int block) const {
        return (const bf16 *)((const char *)cache + slot / each * cache_stride) + block * block_stride;
    }
};

/* Tasks of a prompt: four of every group, but of the last those that have a piece. One of nothing, too. */
INLINE int tasks_of(int length) {
    const int rest = length % GROUP_TOKENS;
    return max(1, length / GROUP_TOKENS * TASKS + min(TASKS, (rest + PIECE - 1) / PIECE));
}
INLINE int groups_of(int length) { return max(1, (length + GROUP_TOKENS - 1) / GROUP_TOKENS); }

struct item {
    unsigned asked; /* the slot, for which token of its answer, and whether that is recorded: see read_list */
    int length, index, items, kv; /* number `index` of so many items of a prompt's KV head */
    INLINE int slot() const { return asked & ((1 << SLOT_BITS) - 1); }
    INLINE int time() const { return asked >> SLOT_BITS & (TIMES - 1); }
    INLINE int token() const { return min((asked & ~UNRECORDED) >> (SLOT_BITS + TIME_BITS), RECORDED); }
    INLINE bool recorded() const { return !(asked & UNRECORDED); }
    INLINE bool fine() const { return items == tasks_of(length) && items > 1; }
    INLINE int task() const { return fine() ? index : index * TASKS; }
    INLINE int end_task() const { return fine() ? index + 1 : min(tasks_of(length), (index + 1) * TASKS); }
};

INLINE item find_item(const int4 *asked, int number, int kv_heads) {
    const int index = number / kv_heads;
    int low = 0, high = MOST_ASKED; /* the last that begins at `index` or before, and is not empty */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (asked[middle].z <= index && asked[middle].w) low = middle;
        else high = middle;
    }
    const int4 found = asked[low];
    return {(unsigned)found.x, found.y, index - found.z, found.w, number % kv_heads};
}

/* Where a block is among its pieces of a layer: pieces w and w + 4 of a group are one task. */
struct walk {
    const int4 *asked;
    int count, kv_heads, number, task, end_task, from;
    item of;
    INLINE walk(const int4 *asked, int count, int kv_heads) : asked(asked), count(count), kv_heads(kv_heads) {
        go_to(blockIdx.x);
    }
    INLINE bool over() const { return number >= count; }
    INLINE int end() const { return min(of.length, (task / TASKS + 1) * GROUP_TOKENS); }
    INLINE void begin(int next) { task = next, from = task / TASKS * GROUP_TOKENS + task % TASKS * PIECE; }
    INLINE void go_to(int next) {
        number = next;
        if (over()) return;
        of = find_item(asked, number, kv_heads);
        end_task = of.end_task();
        begin(of.task());
    }
    INLINE void advance() {
        const bool first = from % GROUP_TOKENS < TASKS * PIECE;
        from += TASKS * PIECE;
        if (first && from < end()) return;
        if (task + 1 < end_task) begin(task + 1);
        else go_to(number + gridDim.x);
    }
};

struct answer_shared {
    unsigned char keys[4][PLACE_BYTES], values[4][PLACE_BYTES]; /* of sixteen positions each */
    unsigned long long full[8];                                 /* barriers of these */
    float o[ANSWERED][PITCH], m[ANSWERED], l[ANSWERED];
    float4 scores[ANSWERED][PIECE / 4];
    bf16 q[8][Q_PITCH];
    int4 asked[MOST_ASKED];
    int last, warps[WARPS];
};

/* Each warp fetches the keys and values of its sixteen positions of a piece, with one lane; `turn` says how often. */
struct fetching {
    unsigned keys, values, full, turn;
    INLINE fetching(const answer_shared &s)
        : keys(in_shared(s.keys)), values(in_shared(s.values)), full(in_shared(s.full)), turn(0) {}
    INLINE static void fetch(unsigned to, unsigned barrier, const bf16 *from) {
        if (from) {
            barrier_expect(barrier, PLACE_BYTES);
            bulk_copy(to, from, PLACE_BYTES, barrier);
        } else
            barrier_arrive(barrier); /* behind the prompt's end */
    }
    INLINE void fetch_keys(int warp, const bf16 *from) const { fetch(keys + warp * PLACE_BYTES, full + 8 * warp, from); }
    INLINE void fetch_values(int warp, const bf16 *from) const {
        fetch(values + warp * PLACE_BYTES, full + 32 + 8 * warp, from);
    }
    INLINE unsigned wait_for_keys(int warp) const {
        barrier_wait(full + 8 * warp, turn & 1);
        return keys + warp * PLACE_BYTES;
    }
    INLINE unsigned wait_for_values(int warp) const {
        barrier_wait(full + 32 + 8 * warp, turn & 1);
        return values + warp * PLACE_BYTES;
    }
    /* What was read by this thread may be copied over, once the others that read it have said so too (linear.cuh). */
    INLINE static void have_read() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
};

/* Keys of a warp's sixteen positions of a piece; null behind its end. Values lie so many numbers behind them. */
INLINE const bf16 *keys_of(const arenas &from, const walk &at, int block) {
    const int warp = threadIdx.x >> 5;
    if (at.over() || at.from + 16 * warp >= at.end()) return nullptr;
    return from.block_at(at.of.slot(), block) + (size_t)at.of.kv * 16 * DIM;
}
INLINE const bf16 *values_of(const arenas &from, const walk &at, int block) {
    const bf16 *keys = keys_of(from, at, block);
    return keys ? keys + (size_t)at.kv_heads * 16 * DIM : nullptr;
}
INLINE int block_of(const arenas &from, const walk &at) {
    return at.over() ? 0 : from.block(at.of.slot(), at.from + 16 * (threadIdx.x >> 5));
}

using warp_part = lane_part<1, 2 * CHUNKS>;

/* One piece. When its keys and values have been read, those of the next are fetched into their places. */
INLINE void answer_piece(warp_part &part, answer_shared &s, fetching &f, const arenas &from, const walk &now, const walk &next,
                         int next_block, int queries, float scale) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int start = now.from, end = now.end();
    const bool fetches = lane == 0 && !next.over();
    const unsigned keys = f.wait_for_keys(warp) + ((4 * (g >> 1) + (g & 1)) * DIM + 8 * t) * 2;
    if (start + 16 * warp < end) {
        float score[2][2] = {};
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) {
            const uint4 high = *(const uint4 *)&s.q[g][32 * c + 8 * t], low = make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int e = 0; e < 2; e++) multiply_32<1>(score[e], high, low, sixteen(keys + (2 * e * DIM + 32 * c) * 2));
        }
        if (g < queries) s.scores[g][4 * warp + t] = make_float4(score[0][0], score[0][1], score[1][0], score[1][1]);
    }
    f.have_read();
    __syncthreads();
    if (fetches) f.fetch_keys(warp, keys_of(from, next, next_block));
    float score[4][2][2];
#pragma unroll
    for (int j = 0; j < 4; j++) *(float4 *)score[j] = g < queries ? s.scores[g][4 * j + t] : make_float4(0, 0, 0, 0);
    const seen all = {0, now.of.length}, none = {0, 0};
    weigh(part, score, start, g < queries ? all : none, none, scale);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const unsigned values = f.wait_for_values(j) + lane * 16 + warp * CHUNKS * 512;
        if (start + 16 * j < end) {
            const weights<1> of(score[j]);
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) of.times(part.o + 2 * i, sixteen(values + i * 512));
        }
    }
    f.have_read();
    __syncthreads();
    if (fetches) f.fetch_values(warp, values_of(from, next, next_block));
    f.turn++;
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

/* A process's own notes of the step that it answers; and one entry for each asked slot. */
struct notes {
    unsigned step, closing, launch, all, arrived, unused[3]; /* `arrived`: blocks of this launch */
    int4 asked[MOST_ASKED];
};

/* Whom a step asks, and how much is exposed there: slot, time and token, as the service says (queries.py); length, items of
 * those before, items; the number of all items of a KV head is returned. Negative: the list is another step's already. */
INLINE int read_list(int4 *asked_, const arenas &from, unsigned *gates, int layers, int slots, int most_groups, int kv_heads,
                     unsigned step, answer_shared &s) {
    unsigned word, number;
    asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];"
                 : "=r"(word), "=r"(number)
                 : "l"(asked_list(gates, layers) + threadIdx.x)
                 : "memory");
    __threadfence(); /* announced before it is written: where the number is still this step's, so was the list */
    const bool over = *(volatile unsigned *)announced(gates, layers) != step;
    const int slot = word & ((1 << SLOT_BITS) - 1);
    const bool asked = step && number == step && slot < slots;
    int length = asked ? __ldcg(&from.at(slot)->length) : 0;
    length = min(max(length, 0), min(from.blocks * 16, most_groups * GROUP_TOKENS));
    int items = asked ? tasks_of(length) : 0, end = sum_until(items, s.warps);
    if (__syncthreads_or(end * kv_heads > gridDim.x)) { /* not a block for every task */
        items = asked ? groups_of(length) : 0;
        end = sum_until(items, s.warps);
    }
    const unsigned unrecorded = asked && !__ldcg(&from.at(slot)->recorded) ? UNRECORDED : 0;
    asked_[threadIdx.x] = make_int4(asked ? (word & ~UNRECORDED) | unrecorded : 0, length, end - items, items);
    if (threadIdx.x == 32 * WARPS - 1) s.last = end;
    return __syncthreads_or(over) ? -1 : s.last;
}

/* Leave no lengths in shared memory, where nothing else was held. */
INLINE void forget_list(answer_shared &s) {
    volatile int *asked = (volatile int *)(s.asked + threadIdx.x);
    asked[0] = asked[1] = asked[2] = asked[3] = 0;
    if (threadIdx.x < WARPS) *(volatile int *)(s.warps + threadIdx.x) = 0;
    if (threadIdx.x == 0) *(volatile int *)&s.last = 0;
}

/* Pieces of all prompts that are asked, each thread having one: what a KV head takes. */
INLINE int pieces_of(const int4 &asked, answer_shared &s) {
    const int all = sum_until(asked.w ? max(1, (asked.y + PIECE - 1) / PIECE) : 0, s.warps);
    if (threadIdx.x == 32 * WARPS - 1) s.last = all;
    __syncthreads();
    return s.last;
}

/* One thread waits for a word, the others for it. False: too long, or this process closes. */
INLINE bool await(const unsigned *word, unsigned value, const volatile unsigned *closing, long long patience_ns) {
    bool here = true;
    if (threadIdx.x == 0) {
        const unsigned long long since = now_ns();
        while (here && *(const volatile unsigned *)word != value) here = now_ns() - since < patience_ns && !*closing;
    }
    return __syncthreads_and(here);
}

/* Whether the step is answered by blocks that stay, once that is decided. */
INLINE bool stays_for(unsigned *gates, int layers, unsigned step, const volatile unsigned *closing, long long patience_ns) {
    bool stays = true;
    if (threadIdx.x == 0) {
        const volatile unsigned *decided = way_of(gates, layers);
        const unsigned long long since = now_ns();
        while (*decided == way(step, UNDECIDED) && now_ns() - since < patience_ns && !*closing) {}
        stays = *decided == way(step, STAYS);
    }
    return __syncthreads_and(stays);
}

/* What a thread takes of a KV head's queries, two pairs of words at most, and how they are rotated on to their place behind
 * the prompt. Asked for while the item before is computed. */
struct questions {
    const uint2 *at;
    uint4 pair[2]; /* value and number of both */
    float c0, c1, z0, z1;
    INLINE void look(int i) {
        const uint2 *x = at + i * 2 * 32 * WARPS, *y = x + DIM / 2;
        asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];" : "=r"(pair[i].x), "=r"(pair[i].y) : "l"(x) : "memory");
        asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];" : "=r"(pair[i].z), "=r"(pair[i].w) : "l"(y) : "memory");
    }
    INLINE static int query_of(int i) { return (threadIdx.x + 32 * WARPS * i) / (DIM / 2); }
    INLINE void ask(const exposed *slot, const uint2 *box, int kv, int queries) {
        const int d = threadIdx.x % (DIM / 2);
        at = box + (kv * queries + query_of(0)) * DIM + d;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (query_of(i) < queries) look(i);
        c0 = __ldcg(slot->cosine + d), c1 = __ldcg(slot->cosine + DIM / 2 + d);
        z0 = __ldcg(slot->sine + d), z1 = __ldcg(slot->sine + DIM / 2 + d);
    }
    /* Into shared memory; as the service posted them, into `kept`, if that is given. False: they do not come. */
    INLINE bool take(answer_shared &s, uint4 *kept, int queries, unsigned number, long long patience_ns) {
        const int d = threadIdx.x % (DIM / 2);
        bool here = true;
        const unsigned long long since = now_ns();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int query = query_of(i);
            if (query >= queries) continue;
            while (here && (pair[i].y != number || pair[i].w != number)) {
                look(i);
                here = now_ns() - since < patience_ns;
            }
            const float x = __uint_as_float(pair[i].x), y = __uint_as_float(pair[i].z);
            s.q[query][d] = rounded(__fsub_rn(__fmul_rn(x, c0), __fmul_rn(y, z0)));
            s.q[query][d + DIM / 2] = rounded(__fadd_rn(__fmul_rn(y, c1), __fmul_rn(x, z1)));
        }
        if (kept) __stcg(kept + threadIdx.x, make_uint4(pair[0].x, pair[0].z, pair[1].x, pair[1].z));
        return !__syncthreads_or(!here);
    }
};

/* Where each vault's numbers and records lie in its arena; `items` of those numbers are tasks', those behind them groups'. */
struct records {
    size_t keys, entries;
    int items;
};

/* What the last `count` items were asked, as it was `kept` when it was taken, into their vaults' records: a warp for each. */
INLINE void record_queries(const answer_shared &s, const uint4 *kept, int first, int count, const arenas &from, const records &at,
                           int queries, int kv_heads, int layers, int layer) {
    const int lane = threadIdx.x & 31;
    for (int number = threadIdx.x >> 5; number < count; number += WARPS) {
        const item of = find_item(s.asked, first + number * gridDim.x, kv_heads);
        if (!of.recorded()) continue;
        const int slot = of.slot();
        const char *arena = from.slots + slot / from.each * from.slot_stride;
        const query_keys keys = {(const unsigned long long *)(arena + at.keys), kv_heads, layers};
        query_sum sum;
#pragma unroll 2
        for (int thread = lane; thread < 32 * WARPS; thread += 32) { /* what each took */
            const uint4 words = __ldcg(kept + number * 32 * WARPS + thread);
            const int query = thread / (DIM / 2), other = (thread + 32 * WARPS) / (DIM / 2);
            const unsigned long long *x = keys.values(of.kv) + query * DIM + thread % (DIM / 2), *y = x + (other - query) * DIM;
            if (query < queries) sum.add(__ldcg(x), words.x), sum.add(__ldcg(x + DIM / 2), words.y);
            if (other < queries) sum.add(__ldcg(y), words.z), sum.add(__ldcg(y + DIM / 2), words.w);
        }
        unsigned long long hash = sum.over_warp();
        if (lane) continue;
        const unsigned long long of_item = __ldcg(keys.item(of.fine() ? of.index : at.items + of.index));
        hash = folded(hash + __ldcg(keys.head(of.kv)), 0);
        hash = product_of(product_of(__ldcg(keys.layer(of.time(), layer)), of_item), hash);
        unsigned long long *entry = (unsigned long long *)(arena + at.entries) + (slot % from.each * (RECORDED + 1) + of.token()) * ENTRY;
        add_hash(entry, hash);
        if (layer + of.kv + of.index == 0) atomicOr(entry + 2, 1ull << (of.time() + (of.fine() ? 0 : TIMES)));
    }
    __syncthreads(); /* the next queries are taken into the same places */
}

/* How many have come for this number so far. One that gave up at an earlier number leaves no trace. */
INLINE int count_in(unsigned *ticket, unsigned number) {
    unsigned found = *(volatile unsigned *)ticket, before, after;
    do {
        before = found;
        after = before >> 12 == (number & 0xfffff) ? before + 1 : (number << 12) + 1;
        found = atomicCAS(ticket, before, after);
    } while (found != before);
    return after & 0xfff;
}

/* The last item of a prompt's KV head to be done merges all of them, and answers. `parts` is [item][query][dim + 4]. */
INLINE void answer_item(const share<1> &mine, const item &of, float *parts, unsigned *ticket, uint2 *answers, int &last,
                        int queries, unsigned number) {
    constexpr int HELD = 1;
    if (of.items > 1) {
        EACH_FOUR(i, queries) {
            float *to = parts + (of.index * queries + query_of(i)) * (DIM + 4);
            *(float4 *)(to + dim_of(i)) = mine.o[i];
            if (dim_of(i) == 0) to[DIM] = mine.m[i], to[DIM + 1] = mine.l[i];
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last = count_in(ticket, number) == of.items;
        __syncthreads();
        if (!last) return;
        __threadfence();
    }
    EACH_FOUR(i, queries) {
        share<1> of_segment, of_group;
        of_segment.clear();
        if (of.items == 1) of_segment.merge(0, mine);
        const int each = of.fine() ? TASKS : 1; /* of a group */
        for (int index = 0; index < of.items && of.items > 1;) {
            of_group.clear();
            for (const int end = min(of.items, index + each); index < end; index++) {
                const float *part = parts + (index * queries + query_of(i)) * (DIM + 4);
                of_group.merge(0, __ldcg((const float4 *)(part + dim_of(i))), __ldcg(part + DIM), __ldcg(part + DIM + 1));
            }
            of_segment.merge(0, of_group);
        }
        uint2 *to = answers + query_of(i) * (DIM + 2);
        post_two(to + dim_of(i), of_segment.o[0].x, of_segment.o[0].y, number);
        post_two(to + dim_of(i) + 2, of_segment.o[0].z, of_segment.o[0].w, number);
        if (dim_of(i) == 0) post_two(to + DIM, of_segment.m[0], of_segment.l[0], number);
    }
}

/* Layers from `first` to `end`: all of them, by blocks that stay (`launch` is the number of this launch, from 1 on), or one
 * (0). The asked slots' items, in the order of the list, are shared out among the blocks, whatever the grid; `slots` is
 * the number of all slots. A block that has nothing to do ends at once, and may start so late that the service announces
 * the next step already. So those that stay go by what the first has noted for this launch, and in single layers all but
 * the first layer go by the process's own word, and nobody by a list of which a part may be the next step's. Who has
 * something to answer cannot be late; the first block always has. A closing process answers nothing and leaves its gates
 * open, so that what was launched ahead comes to an end. Shared memory is wiped: the next process here could read it. */
KERNEL __launch_bounds__(32 * WARPS, 4)
    answer(const bf16 *cache, size_t block_stride, size_t layer_stride, const float *scales, float *parts, int slots,
           int heads, int kv_heads, int most_groups, const char *exposures, size_t slot_stride, size_t cache_stride, int each,
           int exposed_bytes, int blocks, size_t keys_at, size_t records_at, uint4 *all_kept, char *boxes, size_t box_stride, unsigned *gates, unsigned *tickets, notes *own,
           int layers, int first, int end, unsigned launch, long long patience_ns) {
    constexpr int HELD = 1;
    __shared__ __align__(128) answer_shared s;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, queries = heads / kv_heads;
    const volatile unsigned *closing = &own->closing;
    arenas from = {exposures, cache, slot_stride, cache_stride, block_stride, each, exposed_bytes, blocks};
    uint4 *own_kept = all_kept + blockIdx.x * KEPT * 32 * WARPS;
    const records recorded = {keys_at, records_at, most_groups * TASKS};
    const auto box_at = [&](int slot) { return (uint2 *)(boxes + slot * box_stride); };
    if (__syncthreads_or(*closing)) return;
    const bool leads = blockIdx.x == 0 && threadIdx.x == 0;
    unsigned step = *(volatile unsigned *)(first ? &own->step : announced(gates, layers));
    int all;
    if (launch) {
        if (leads) *(volatile unsigned *)begun(gates, layers) = 0; /* closed again */
        if (blockIdx.x == 0) {
            all = read_list(own->asked, from, gates, layers, slots, most_groups, kv_heads, step, s);
            const bool few = pieces_of(own->asked[threadIdx.x], s) * kv_heads <= MOST_STAYING * gridDim.x;
            if (threadIdx.x == 0) {
                if (!few) decide(gates, layers, step, COMES);
                own->all = few ? max(all, 0) : 0, own->step = step, own->arrived = 0;
            }
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) *(volatile unsigned *)&own->launch = launch;
        }
        if (!await(&own->launch, launch, closing, patience_ns)) return;
        all = *(volatile unsigned *)&own->all, step = *(volatile unsigned *)&own->step;
        if (threadIdx.x == 0 && all && atomicAdd(&own->arrived, 1) + 1 == gridDim.x)
            decide(gates, layers, step, STAYS); /* the last to come: all are on the GPU */
        if (!all || !stays_for(gates, layers, step, closing, patience_ns)) {
            forget_list(s);
            return;
        }
        s.asked[threadIdx.x] = __ldcg(own->asked + threadIdx.x);
    } else {
        if (leads) *(volatile unsigned *)gate_of(gates, first) = 0;
        if (leads && !first) *(volatile unsigned *)&own->step = step;
        all = read_list(s.asked, from, gates, layers, slots, most_groups, kv_heads, step, s);
    }
    const int count = all * kv_heads;
    if ((int)blockIdx.x >= count) {
        forget_list(s);
        return;
    }
    for (int i = threadIdx.x; i < 8 * Q_PITCH / 2; i += 32 * WARPS) ((unsigned *)s.q)[i] = 0;
    fetching f(s);
    if (threadIdx.x < 8) barrier_init(f.full + 8 * threadIdx.x, 1);
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    bool here = true;
    for (int layer = first; here && layer < end; layer++) {
        const unsigned number = step * layers + layer + 1;
        from.cache = (const bf16 *)((const char *)cache + layer * layer_stride);
        walk now(s.asked, count, kv_heads);
        int kept = 0;
        const int block = block_of(from, now);
        if (launch && !(here = await(begins_at(gates, layer), step, closing, MORE_PATIENCE * patience_ns))) break;
        if (lane == 0) f.fetch_keys(warp, keys_of(from, now, block)), f.fetch_values(warp, values_of(from, now, block));
        questions words;
        words.ask(from.at(now.of.slot()), box_at(now.of.slot()), now.of.kv, queries);
        while (!now.over()) {
            const item of = now.of;
            uint2 *box = box_at(of.slot());
            if (!(here = words.take(s, of.recorded() ? own_kept + kept * 32 * WARPS : nullptr, queries, number, patience_ns))) {
                f.wait_for_keys(warp), f.wait_for_values(warp); /* nothing is copied into what was given up */
                break;
            }
            if (now.number + (int)gridDim.x < count) {
                const item next = find_item(s.asked, now.number + gridDim.x, kv_heads);
                words.ask(from.at(next.slot()), box_at(next.slot()), next.kv, queries);
            }
            share<1> mine;
            mine.clear();
            for (bool more = true; more;) {
                warp_part part;
                part.clear();
                for (bool again = true; again;) {
                    walk next = now;
                    next.advance();
                    answer_piece(part, s, f, from, now, next, block_of(from, next), queries, scales[layer]);
                    more = next.number == now.number;
                    again = more && next.task == now.task;
                    now = next;
                }
                const int g = lane >> 2, t = lane & 3;
                if (g < queries) {
#pragma unroll
                    for (int i = 0; i < 2 * CHUNKS; i++)
                        *(float2 *)&s.o[g][8 * (2 * CHUNKS * warp + i) + 2 * t] = make_float2(part.o[i][0], part.o[i][1]);
                    if (lane % 4 == 0 && warp == 0) s.m[g] = part.m[0], s.l[g] = part.l[0];
                }
                __syncthreads();
                EACH_FOUR(i, queries) {
                    const int query = query_of(i);
                    mine.merge(i, *(const float4 *)&s.o[query][dim_of(i)], s.m[query], s.l[query]);
                }
            }
            const size_t head = (size_t)of.slot() * kv_heads + of.kv;
            answer_item(mine, of, parts + head * most_groups * TASKS * queries * (DIM + 4), tickets + head,
                        box + heads * DIM + of.kv * queries * (DIM + 2), s.last, queries, number);
            if (++kept < KEPT && !now.over()) continue;
            record_queries(s, own_kept, now.number - kept * gridDim.x, kept, from, recorded, queries, kv_heads, layers, layer);
            kept = 0;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (int)(sizeof(s) / 4); i += 32 * WARPS) ((volatile unsigned *)&s)[i] = 0;
}
