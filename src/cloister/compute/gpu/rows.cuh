/* What is done to each row by itself: embedding, the residual sum and RMSNorm, rotation, argmax. Sums over a row have
 * one order, given by its width alone. */

/* A row's value of a product whose ranges of k are still apart: [range][row][pitch]. */
struct ranges {
    const float *sums;
    const float *bias;
    int splits, rows, pitch;
    INLINE float at(int row, int column) const {
        const float *p = sums + (size_t)row * pitch + column;
        float sum = p[0];
#pragma unroll 4
        for (int s = 1; s < splits; s++) sum = __fadd_rn(sum, p[(size_t)s * rows * pitch]);
        return bias ? __fadd_rn(sum, bias[column]) : sum;
    }
};

INLINE float block_sum(float x, float *shared) {
    for (int o = 16; o; o >>= 1) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, o));
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = x;
    __syncthreads();
    float sum = shared[0];
    for (int w = 1; w < blockDim.x >> 5; w++) sum = __fadd_rn(sum, shared[w]);
    return sum;
}

KERNEL embed(const long long *tokens, const bf16 *weight, float *x, int k) {
    after_last();
    let_next_start();
    const long long token = tokens[blockIdx.x];
    const bf16 *from = weight + (size_t)(token >> 6) * k * 64 + (token & 63) * 8;
    for (int i = threadIdx.x; i < k; i += blockDim.x)
        x[(size_t)blockIdx.x * k + i] = token < 0 ? 0.0f : widened(from[(size_t)(i >> 3) * 512 + (i & 7)]);
}

/* x += the last product, if there is one; then, if wanted, its norm, ready for the next. Where gates are given, it says
 * there that a layer begins: who answers fetches that layer's keys and values (link.cuh). */
KERNEL __launch_bounds__(512) add_and_norm(float *x, const float *sums, const float *bias, int splits, int rows, int pitch,
                                           int k, const float *weight, float epsilon, bf16 *normed,
                                           const unsigned long long *gates, const unsigned *steps, int layer) {
    __shared__ float shared[16];
    const int row = blockIdx.x;
    float v[4][8], squares = 0.0f;
    after_last();
    let_next_start();
    if (gates && row == 0)
        for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x)
            if (gates[i]) *(volatile unsigned *)begins_at((unsigned *)gates[i], layer) = *steps;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int at = (j * blockDim.x + threadIdx.x) * 8;
        if (at >= k) break;
        float *to = x + (size_t)row * k + at;
        *(float4 *)&v[j][0] = *(const float4 *)to;
        *(float4 *)&v[j][4] = *(const float4 *)(to + 4);
        if (splits) {
            const float *p = sums + (size_t)row * pitch + at;
            float sum[8];
#pragma unroll
            for (int e = 0; e < 8; e += 4) *(float4 *)&sum[e] = *(const float4 *)(p + e);
#pragma unroll 4
            for (int s = 1; s < splits; s++) {
                const float *q = p + (size_t)s * rows * pitch;
                const float4 a = *(const float4 *)q, b = *(const float4 *)(q + 4);
                const float more[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
                for (int e = 0; e < 8; e++) sum[e] = __fadd_rn(sum[e], more[e]);
            }
#pragma unroll
            for (int e = 0; e < 8; e++) {
                if (bias) sum[e] = __fadd_rn(sum[e], bias[at + e]);
                v[j][e] = __fadd_rn(v[j][e], sum[e]);
            }
            *(float4 *)to = *(float4 *)&v[j][0];
            *(float4 *)(to + 4) = *(float4 *)&v[j][4];
        }
#pragma unroll
        for (int e = 0; e < 8; e++) squares = __fmaf_rn(v[j][e], v[j][e], squares);
    }
    if (!normed) return;
    const float scale = rsqrtf(block_sum(squares, shared) / k + epsilon);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int at = (j * blockDim.x + threadIdx.x) * 8;
        if (at >= k) break;
        float w[8];
        *(float4 *)&w[0] = *(const float4 *)(weight + at);
        *(float4 *)&w[4] = *(const float4 *)(weight + at + 4);
#pragma unroll
        for (int e = 0; e < 8; e++) w[e] = __fmul_rn(__fmul_rn(v[j][e], scale), w[e]);
        *(uint4 *)(normed + place(row, at, rows)) =
            make_uint4(rounded(w[0], w[1]), rounded(w[2], w[3]), rounded(w[4], w[5]), rounded(w[6], w[7]));
    }
}

/* Rows of fp32, rounded, in the order a product reads them. */
KERNEL lay_rows(const float *x, bf16 *out, int rows, int k) {
    after_last();
    let_next_start();
    for (int i = threadIdx.x; i < k; i += blockDim.x)
        out[place(blockIdx.x, i, rows)] = rounded(x[(size_t)blockIdx.x * k + i]);
}
KERNEL add_ranges(float *out, const float *sums, const float *bias, int splits, int rows, int pitch, int columns, int add) {
    const ranges product = {sums, bias, splits, rows, pitch};
    after_last();
    let_next_start();
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < columns; i += gridDim.y * blockDim.x) {
        float *to = out + (size_t)blockIdx.x * columns + i;
        *to = add ? __fadd_rn(*to, product.at(blockIdx.x, i)) : product.at(blockIdx.x, i);
    }
}
/* Gated rows, from the order a product reads to plain rows. */
KERNEL unlay_rows(const bf16 *x, float *out, int rows, int k) {
    after_last();
    let_next_start();
    for (int i = threadIdx.x; i < k; i += blockDim.x)
        out[(size_t)blockIdx.x * k + i] = widened(x[place(blockIdx.x, i, rows)]);
}

/* A warp per head: norms of queries and keys where the model has them, rotation, keys and values into the cache.
 * A key lies as [16 tokens][dim]; values as [dim / 16][8][4][2][4]: the sixteen bytes a lane of `attend` takes at once. */
INLINE int value_place(int d, int token) {
    return ((((d >> 4) * 8 + (d & 7)) * 4 + (token >> 2)) * 2 + ((d >> 3) & 1)) * 4 + (token & 3);
}
#define ROTATED_ARGUMENTS                                                                                              \
    const float *sums, const float *bias, int splits, int rows, int pitch, const float *q_norm, const float *k_norm,   \
        float epsilon, const float *cosine, const float *sine, const long long *slots, float *q, bf16 *cache,          \
        size_t block_stride, int heads, int kv_heads, const unsigned long long *boxes, const unsigned *steps,          \
        int layer, int layers
#define ROTATED                                                                                                        \
    sums, bias, splits, rows, pitch, q_norm, k_norm, epsilon, cosine, sine, slots, q, cache, block_stride, heads,      \
        kv_heads, boxes, steps, layer, layers
/* `hashes`: of the first `hashed` rows' queries, which who answers would record if they were asked (answer.cuh). */
template <bool HASHES>
INLINE void rotate_row(ROTATED_ARGUMENTS, const unsigned long long *keys, unsigned long long *hashes, const int *hashed) {
    constexpr int PAIRS = DIM / 64;
    const ranges product = {sums, bias, splits, rows, pitch};
    const int row = blockIdx.x, lane = threadIdx.x & 31, head = blockIdx.y * (blockDim.x >> 5) + (threadIdx.x >> 5);
    after_last();
    let_next_start();
    if (head >= heads + 2 * kv_heads) return;
    const bool is_q = head < heads, is_v = head >= heads + kv_heads;
    float a[PAIRS], b[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        a[i] = product.at(row, head * DIM + lane + 32 * i);
        b[i] = product.at(row, head * DIM + DIM / 2 + lane + 32 * i);
    }
    const float *norm = is_v ? nullptr : is_q ? q_norm : k_norm;
    if (norm) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) squares = __fmaf_rn(a[i], a[i], __fmaf_rn(b[i], b[i], squares));
        for (int o = 16; o; o >>= 1) squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, o));
        const float scale = rsqrtf(squares / DIM + epsilon);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            a[i] = __fmul_rn(__fmul_rn(a[i], scale), norm[lane + 32 * i]);
            b[i] = __fmul_rn(__fmul_rn(b[i], scale), norm[DIM / 2 + lane + 32 * i]);
        }
    }
    if (!is_v && cosine)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const size_t at = (size_t)row * DIM + lane + 32 * i;
            const float x = a[i], y = b[i];
            a[i] = __fsub_rn(__fmul_rn(x, cosine[at]), __fmul_rn(y, sine[at]));
            b[i] = __fadd_rn(__fmul_rn(y, cosine[at + DIM / 2]), __fmul_rn(x, sine[at + DIM / 2]));
        }
    if (is_q) {
        float *to = q + ((size_t)row * heads + head) * DIM;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            to[lane + 32 * i] = a[i];
            to[DIM / 2 + lane + 32 * i] = b[i];
        }
        if (HASHES && row < __ldcg(hashed)) {
            const query_keys of = {keys, kv_heads, layers};
            const int queries = heads / kv_heads, kv = head / queries, query = head % queries;
            const unsigned long long *values = of.values(kv) + query * DIM + lane;
            query_sum sum;
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                sum.add(values[32 * i], __float_as_uint(a[i]));
                sum.add(values[DIM / 2 + 32 * i], __float_as_uint(b[i]));
            }
            unsigned long long hash = sum.over_warp();
            if (query == 0) hash = folded(hash + *of.head(kv), 0);
            if (lane == 0) add_hash(hashes + 2 * row, product_of(*of.layer(0, layer), hash));
        }
        if (!boxes || !boxes[row]) return;
        uint2 *box = (uint2 *)boxes[row] + head * DIM;
        const unsigned number = *steps * layers + layer + 1;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            post(box + lane + 32 * i, a[i], number);
            post(box + DIM / 2 + lane + 32 * i, b[i], number);
        }
        return;
    }
    const long long slot = slots[row];
    if (slot < 0) return;
    const int token = slot & 15, kv = (head - heads) % kv_heads;
    bf16 *to = cache + (slot >> 4) * block_stride + (size_t)(is_v ? kv_heads + kv : kv) * 16 * DIM;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const int d = lane + 32 * i, e = DIM / 2 + d;
        to[is_v ? value_place(d, token) : token * DIM + d] = rounded(a[i]);
        to[is_v ? value_place(e, token) : token * DIM + e] = rounded(b[i]);
    }
}

KERNEL rotate_and_store(ROTATED_ARGUMENTS) { rotate_row<false>(ROTATED, nullptr, nullptr, nullptr); }
KERNEL rotate_and_hash(ROTATED_ARGUMENTS, const unsigned long long *keys, unsigned long long *hashes, const int *hashed) {
    rotate_row<true>(ROTATED, keys, hashes, hashed);
}

/* The greatest of each row, the lowest index among equals. */
KERNEL __launch_bounds__(1024) greatest(const float *logits, int pitch, int columns, long long *tokens) {
    __shared__ float best_of[32];
    __shared__ int index_of[32];
    after_last();
    let_next_start();
    const float *row = logits + (size_t)blockIdx.x * pitch;
    float best = -__int_as_float(0x7f800000);
    int index = 0x7fffffff;
    for (int i = threadIdx.x * 4; i < columns; i += 4096) {
        const float4 four = *(const float4 *)(row + i);
        const float v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (i + e < columns && v[e] > best) best = v[e], index = i + e;
    }
    for (int round = 0; round < 2; round++) {
        for (int o = 16; o; o >>= 1) {
            const float other = __shfl_xor_sync(~0u, best, o);
            const int at = __shfl_xor_sync(~0u, index, o);
            if (other > best || (other == best && at < index)) best = other, index = at;
        }
        if (round) break;
        if ((threadIdx.x & 31) == 0) best_of[threadIdx.x >> 5] = best, index_of[threadIdx.x >> 5] = index;
        __syncthreads();
        best = best_of[threadIdx.x & 31];
        index = index_of[threadIdx.x & 31];
    }
    if (threadIdx.x == 0) tokens[blockIdx.x] = index;
}

/* The next step of every row: its token, one position further, the next slot of its last segment. */
KERNEL advance(const long long *chosen, long long *tokens, int *positions, long long *slots, const int *tables,
               int table_stride, const int *segments, const int *counts, int rows) {
    after_last();
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows || counts[row] == 0) return;
    const int *own = segments + (row * 3 + counts[row] - 1) * 4;
    tokens[row] = chosen[row];
    const int position = ++positions[row], within = position + own[2];
    slots[row] = (long long)tables[(size_t)row * table_stride + own[0] + (within >> 4)] * 16 + (within & 15);
}
