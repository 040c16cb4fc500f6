/* What a service asks, hashed, so that the vault that was asked can compare it with what it would ask (queries.py).
 *
 * An item's hash is over the words that its own block read, as the service could change them between two reads:
 *
 *     time · layer · item · (head + Σ key · word)   modulo 2^61 - 1
 *
 * with secret numbers of the vault: for each time that an index is asked, each layer, item, KV head and value. A record of
 * an index adds all of them up. Two ways to ask are two polynomials of degree four in the numbers, so they have one sum with
 * a probability of 2^-59, and one failure ends the service. What is asked twice cannot cancel out: `head` counts. */
#define MOST_VALUES 512 /* of a KV head's queries: 128 threads hold four each (mailbox.py) */
#define PRIME_BITS 61
#define PRIME ((1ull << PRIME_BITS) - 1)
#define TIMES 32       /* that an index is asked for, before they are counted from the beginning */
#define RECORDED 2048  /* indices of an answer; all that are asked behind them have one entry */
#define ENTRY 3        /* words: both halves of the sum, and a bit for each time and way to share out items */
#define SLOT_BITS 12   /* a word of the list of who is asked: slot, time, index */
#define TIME_BITS 5

/* high · 2^64 + low, modulo PRIME; high is less than 2^58. */
INLINE unsigned long long folded(unsigned long long low, unsigned long long high) {
    unsigned long long x = (low & PRIME) + (low >> PRIME_BITS | high << (64 - PRIME_BITS));
    x = (x & PRIME) + (x >> PRIME_BITS);
    return x >= PRIME ? x - PRIME : x;
}
INLINE unsigned long long product_of(unsigned long long a, unsigned long long b) {
    return folded(a * b, __umul64hi(a, b));
}

/* A vault's secret numbers (queries.Keys). */
struct query_keys {
    const unsigned long long *at;
    int kv_heads, layers;
    INLINE const unsigned long long *values(int kv) const { return at + kv * MOST_VALUES; }
    INLINE const unsigned long long *head(int kv) const { return at + kv_heads * MOST_VALUES + kv; }
    INLINE const unsigned long long *layer(int time, int layer) const {
        return at + kv_heads * (MOST_VALUES + 1) + time * layers + layer;
    }
    INLINE const unsigned long long *item(int number) const {
        return at + kv_heads * (MOST_VALUES + 1) + TIMES * layers + number;
    }
};

/* One lane's part of Σ key · word, of 2^32 words at most. */
struct query_sum {
    unsigned long long low, high;
    INLINE query_sum() : low(0), high(0) {}
    INLINE void add(unsigned long long key, unsigned word) {
        const unsigned long long more = key * word;
        low += more;
        high += __umul64hi(key, word) + (low < more);
    }
    INLINE unsigned long long over_warp() const {
        unsigned long long x = folded(low, high);
        for (int o = 1; o < 8; o <<= 1) x += __shfl_xor_sync(~0u, x, o); /* less than 8 · 2^61 */
        x = folded(x, 0);
        for (int o = 8; o < 32; o <<= 1) x += __shfl_xor_sync(~0u, x, o);
        return folded(x, 0);
    }
};

/* In halves, so that sums do not overflow; nothing comes back. */
INLINE void add_hash(unsigned long long *sum, unsigned long long hash) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(sum), "l"(hash & 0xffffffff) : "memory");
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(sum + 1), "l"(hash >> 32) : "memory");
}
