/* The link between a service and an attention process, on the device: questions and answers never pass the host.
 *
 * A row has a box in memory that both processes map: questions [head][dim], answers [head][dim, m, l]. Every value is a
 * word of eight bytes: four of data and four of a number, written at once. A word is valid when its number is the one
 * waited for (1 + layer + step · layers), so nobody needs a fence or a second round trip for a flag.
 *
 * A step is announced first (`begin_step`), with the list of the slots that it asks: those it does not ask cost nothing. A
 * vault has several slots, for prompts that may have blocks in common. Streams of the processes that answer wait for gates
 * without holding a processor. Where products leave room, a gate opens when the step begins, and `answer` stays on the GPU
 * until it is over: `add_and_norm` says that a layer begins, `rotate_and_store` posts its queries. Few blocks can stay, so a
 * process with much to read says that it comes for every layer instead. Then each layer has a gate, opened by the product
 * that gives the queries, by its last block to start: processes are started one after the other, and that takes longer than
 * the product. Which way it is each process decides for itself, once for a step; for one that is late it is decided. So the
 * service learns whether a process has much to read, which it would notice by the time that it takes.
 *
 * Whoever waits on the GPU for another process waits for blocks that are there or find room: those that stay leave room
 * for the service's kernels, and are spread over all processors because they start while nothing else does; those that come
 * for a layer come when all of the product is there, and leave registers for `rotate_and_store`; and `merge_with_vaults`
 * holds few registers and lets no product start beside it unless all who answer stay. */

INLINE uint2 *box_of(const unsigned long long *boxes, int row) { return boxes ? (uint2 *)__ldcg(boxes + row) : nullptr; }
/* Behind the gates: the number of the step, and which slots it asks, each with that number. */
#define MOST_ASKED (32 * WARPS)
INLINE unsigned *announced(unsigned *gates, int layers) { return gates + layers * 16; }
INLINE unsigned *begun(unsigned *gates, int layers) { return gate_of(gates, layers); }
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
    /* The next product's first weights may come, where all who answer stay: they are on the GPU. Its blocks would take the
     * places of others. */
    if (__ldcg(steps + 1) == __ldcg(steps)) let_next_start();
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
            /* One word for all threads of a query first: who answers needs the memory's bandwidth. */
            while (here && !take_two(from + DIM, m, l, number)) {
                here = now_ns() - since < patience_ns;
                __nanosleep(100);
            }
            while (here) {
                const bool x = take_two(from + d, o.x, o.y, number), y = take_two(from + d + 2, o.z, o.w, number);
                if (x && y) break;
                here = now_ns() - since < patience_ns;
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
    let_next_start();
}

/* How a step is to be answered, if nobody has said so before. */
INLINE void decide(unsigned *gates, int layers, unsigned step, int how) {
    atomicCAS(way_of(gates, layers), way(step, UNDECIDED), way(step, how));
}

/* Begins a step: its number, from 1 on, beside the gates of everyone who is asked, then the slots. Where products leave room
 * (`room`) those who are asked begin, and say whether they stay for the step; who has not said so after a while comes for
 * every layer. `asks` is [box, gates, word of the list, slot][row] (mailbox.py); `steps` the step's number, and again if all
 * stay. */
#define DECIDED_NS 100000
KERNEL begin_step(const unsigned long long *asks, int rows, unsigned *steps, unsigned *started, int *late, int layers,
                  int room) {
    after_last();
    const unsigned long long *gates = asks + rows, *listed = gates + rows, *slots = listed + rows;
    const unsigned step = *steps + 1;
    __syncthreads();
    for (int i = threadIdx.x; i < rows; i += blockDim.x) {
        late[i] = 0;
        if (!gates[i]) continue;
        *(volatile unsigned *)way_of((unsigned *)gates[i], layers) = way(step, room ? UNDECIDED : COMES);
        *(volatile unsigned *)announced((unsigned *)gates[i], layers) = step;
    }
    __threadfence();
    __syncthreads();
    for (int i = threadIdx.x; i < rows; i += blockDim.x)
        if (listed[i]) post((uint2 *)listed[i], __uint_as_float((unsigned)slots[i]), step);
    for (int i = threadIdx.x; i < layers; i += blockDim.x) started[i] = 0;
    __threadfence();
    __syncthreads();
    for (int i = threadIdx.x; i < rows && room; i += blockDim.x)
        if (gates[i]) *(volatile unsigned *)begun((unsigned *)gates[i], layers) = 1;
    bool stays = room;
    for (int i = threadIdx.x; i < rows && room; i += blockDim.x) {
        if (!gates[i]) continue;
        const volatile unsigned *decided = way_of((unsigned *)gates[i], layers);
        const unsigned long long since = now_ns();
        while (*decided == way(step, UNDECIDED) && now_ns() - since < DECIDED_NS) {}
        decide((unsigned *)gates[i], layers, step, COMES);
        stays = stays && *decided == way(step, STAYS);
    }
    stays = __syncthreads_and(stays);
    if (threadIdx.x == 0) steps[0] = step, steps[1] = stays ? step : 0;
    let_next_start();
}
