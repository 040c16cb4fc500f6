/* The hot loops: linear layers, norms, rotary positions, the KV cache and attention over it.
 *
 * Every function computes each row by itself, in one fixed order of operations: see linear.h and attention.h.
 * Shapes and bounds are checked in Python (native.py); nothing here allocates but the scratch for bf16 rows. */
#include "attention.h"
#include "draw.h"
#include "lanes.h"
#include "linear.h"
#include "link.h"
#include "team.h"

#define API __attribute__((visibility("default")))

#if defined(__AMX_BF16__)
#define BF16_WITH "amx"
static int allow_tiles(void) { return (int)syscall(SYS_arch_prctl, 0x1023, 18); }
#else
#if defined(__aarch64__)
#define BF16_WITH "neon"
#else
#define BF16_WITH "vector"
#endif
static int allow_tiles(void) { return 0; }
#endif

API const char *cloister_bf16_with(void) { return BF16_WITH; }
API const char *cloister_int8_with(void) { return INT8_WITH; }

/* How many members the team has, or -1 where the kernel refuses the tile registers this build needs. */
API int cloister_start(int members) { return allow_tiles() ? -1 : team_start(members); }

API void cloister_use(int members) { team.most = members; }

API void cloister_take_short_turns(void) { take_short_turns(); }

static const int ITEM_BYTES[] = {[FP32] = 4, [BF16] = 2, [INT8] = 1};

/* A format's k, padded. */
static inline int padded_to(int format, int k) { return format == FP32 ? k : up_to(k, format == INT8 ? DEPTH : KBLOCK); }

/* Where element i of column c stands in its panel. */
static inline size_t place(int format, int i, int c) {
    if (format == FP32) return (size_t)i * PANEL + c;
    if (format == INT8) return (size_t)(i / 4) * 4 * PANEL + c * 4 + i % 4;
    return (size_t)(i / 32) * 1024 + c / 16 * 512 + i % 32 / 2 * 32 + c % 16 * 2 + i % 2;
}

struct pack {
    const char *weight;
    char *packed;
    int format, columns, k, padded;
};

static void pack_panel(const void *given, int panel, int member) {
    const struct pack *job = given;
    size_t item = ITEM_BYTES[job->format], size = (size_t)job->padded * PANEL * item;
    char *to = job->packed + panel * size;
    memset(to, 0, size);
    for (int c = 0; c < PANEL && panel * PANEL + c < job->columns; c++) {
        const char *row = job->weight + (size_t)(panel * PANEL + c) * job->k * item;
        for (int i = 0; i < job->k; i++) memcpy(to + place(job->format, i, c) * item, row + i * item, item);
    }
}

API void cloister_pack(const void *weight, int format, int columns, int k, void *packed) {
    struct pack job = {weight, packed, format, columns, k, padded_to(format, k)};
    share_out(pack_panel, &job, up_to(columns, PANEL) / PANEL);
}

struct packed {
    const void *data;
    const float *bias, *scale;
    int columns, k, epilogue, format;
};

/* Rows of the packed matrix: the embedding of token ids from the one copy that is also the output layer. */
API void cloister_embed(const struct packed *w, const int64_t *ids, int rows, float *out) {
    int padded = padded_to(w->format, w->k);
    for (int r = 0; r < rows; r++) {
        int c = (int)(ids[r] % PANEL);
        size_t base = (size_t)(ids[r] / PANEL) * padded * PANEL;
        for (int i = 0; i < w->k; i++) {
            size_t at = base + place(w->format, i, c);
            uint32_t half = w->format == BF16 ? (uint32_t)((const uint16_t *)w->data)[at] << 16 : 0;
            float value;
            if (w->format == BF16) memcpy(&value, &half, 4);
            else value = w->format == FP32 ? ((const float *)w->data)[at] : ((const int8_t *)w->data)[at] * w->scale[ids[r]];
            out[(size_t)r * w->k + i] = value;
        }
    }
}

/* `tiles` is scratch for up_to(rows, 16) × up_to(k, 32) floats. */
API void cloister_linear(const float *x, int rows, const struct packed *w, int epilogue, float *out, int out_stride,
                         uint16_t *tiles) {
    struct linear job = {x, tiles, w->data, w->bias, w->scale, out, rows, w->k, w->columns, out_stride, epilogue, w->format, 0};
    tile(&job);
    panels(&job, 0, up_to(w->columns, PANEL) / PANEL);
}

struct norm {
    const float *x, *weight;
    float *out, epsilon;
    int rows, width, x_stride, out_stride, groups;
};

static void norm_row(const void *given, int item, int member) {
    const struct norm *job = given;
    int row = item / job->groups, group = item % job->groups;
    const float *x = job->x + (size_t)row * job->x_stride + (size_t)group * job->width;
    float *out = job->out + (size_t)row * job->out_stride + (size_t)group * job->width;
    lanes squares = all(0.0f);
    for (int i = 0; i < job->width; i += WIDTH) squares += load(x + i) * load(x + i);
    lanes scale = all(1.0f / __builtin_sqrtf(sum(squares) / (float)job->width + job->epsilon));
    for (int i = 0; i < job->width; i += WIDTH) store(out + i, load(x + i) * scale * load(job->weight + i));
}

static void norm_rows(const void *given, int item, int member) {
    const struct norm *job = given;
    for (int i = item * ROWS * job->groups; i < (item + 1) * ROWS * job->groups && i < job->rows * job->groups; i++)
        norm_row(given, i, member);
}

/* RMSNorm of `groups` runs of `width` floats in each row (a whole row, or each head by itself); may be in place. */
API void cloister_rms_norm(const float *x, int x_stride, int rows, int groups, int width, const float *weight,
                           float epsilon, float *out, int out_stride) {
    struct norm job = {x, weight, out, epsilon, rows, width, x_stride, out_stride, groups};
    share_out(norm_rows, &job, up_to(rows, ROWS) / ROWS);
}

struct rotate {
    float *q, *k;
    const float *v, *cosine, *sine;
    void *keys, *values;
    const int64_t *slot;
    int rows, heads, kv_heads, dim, rotary, stride, bf16;
    size_t block;
};

static void rotate_rows(const void *given, int item, int member) {
    const struct rotate *job = given;
    for (int row = item * ROWS; row < (item + 1) * ROWS && row < job->rows; row++) {
        float *q = job->q + (size_t)row * job->stride, *k = job->k + (size_t)row * job->stride;
        const float *v = job->v + (size_t)row * job->stride;
        if (job->rotary) {
            const float *cosine = job->cosine + (size_t)row * job->rotary, *sine = job->sine + (size_t)row * job->rotary;
            for (int h = 0; h < job->heads; h++) rotate(q + h * job->dim, cosine, sine, job->rotary);
            for (int h = 0; h < job->kv_heads; h++) rotate(k + h * job->dim, cosine, sine, job->rotary);
        }
        size_t block = (size_t)job->slot[row] / BLOCK, lane = (size_t)job->slot[row] % BLOCK;
        for (int h = 0; h < job->kv_heads; h++) {
            size_t base = block * job->block + (size_t)h * BLOCK * job->dim;
            for (int d = 0; d < job->dim; d++) {
                size_t key = base + (size_t)d * BLOCK + lane, value = base + lane * job->dim + d;
                float kx = k[h * job->dim + d], vx = v[h * job->dim + d];
                if (job->bf16) ((uint16_t *)job->keys)[key] = to_bf16(kx), ((uint16_t *)job->values)[value] = to_bf16(vx);
                else ((float *)job->keys)[key] = kx, ((float *)job->values)[value] = vx;
            }
        }
    }
}

/* Rotates q and k in place by their rows' angles (rotary 0: leaves them) and writes k and v into their cache slots. */
API void cloister_rotate_and_store(float *q, float *k, const float *v, int stride, int rows, int heads, int kv_heads,
                                   int dim, int rotary, const float *cosine, const float *sine, const int64_t *slot,
                                   void *keys, void *values, int bf16, size_t block) {
    struct rotate job = {q, k, v, cosine, sine, keys, values, slot, rows, heads, kv_heads, dim, rotary, stride, bf16, block};
    share_out(rotate_rows, &job, up_to(rows, ROWS) / ROWS);
}

/* Attention of all rows; `asking` (or NULL) names the vaults that hold a part of some rows' prompts. */
API void cloister_attention(const struct attention *job, struct asking *asking, int layer) {
    if (comparing) compare_queries(job, layer);
    if (asking) ask(job, asking, layer);
    share_out(attend, job, job->tiles * job->kv_heads);
    if (asking) rest_team(), await_all(asking), take_answers(job, asking);
}

/* One decoder layer of the Llama family, on either side of its attention. */
struct layer {
    const float *attention_norm, *q_norm, *k_norm, *mlp_norm;
    struct packed qkv, out, gate_up, down;
    int index, hidden, heads, kv_heads, dim, rotary, window;
    float epsilon, scale;
};

struct workspace {
    float *normed, *qkv, *gated;
    uint16_t *tiles;
};

static void norm_heads(const struct layer *layer, float *x, int stride, int rows, int heads, const float *weight) {
    if (weight) cloister_rms_norm(x, stride, rows, heads, layer->dim, weight, layer->epsilon, x, stride);
}

static void before_attention(const struct layer *layer, const struct workspace *space, const float *x, int rows,
                             const float *cosine, const float *sine, const int64_t *slot, void *keys, void *values,
                             size_t block) {
    int queries = layer->heads * layer->dim, width = layer->kv_heads * layer->dim, stride = queries + 2 * width;
    float *q = space->qkv, *k = q + queries, *v = k + width;
    cloister_rms_norm(x, layer->hidden, rows, 1, layer->hidden, layer->attention_norm, layer->epsilon, space->normed, layer->hidden);
    cloister_linear(space->normed, rows, &layer->qkv, PLAIN, space->qkv, stride, space->tiles);
    norm_heads(layer, q, stride, rows, layer->heads, layer->q_norm);
    norm_heads(layer, k, stride, rows, layer->kv_heads, layer->k_norm);
    cloister_rotate_and_store(q, k, v, stride, rows, layer->heads, layer->kv_heads, layer->dim, layer->rotary, cosine, sine,
                              slot, keys, values, layer->qkv.format != FP32, block);
}

/* Where a step's time goes, in the order of the paper's Figure 7. */
enum phase { QUERY, KEY_VALUE, OUTPUT_ATTENTION, WAITING, MERGE, REST, PHASES };

static uint64_t spent(uint64_t *phases, enum phase phase, uint64_t since) {
    uint64_t now = now_ns();
    phases[phase] += now - since;
    return now;
}

/* A layer whose rows have parts in vaults: Q first, so that the vaults work while K, V and the attention over what is
 * here are computed (Petridish §5). Column by column the products are those of the layer above. */
static void partitioned_attention(const struct layer *layer, const struct workspace *space, const float *x, int rows,
                                  const float *cosine, const float *sine, const int64_t *slot,
                                  const struct attention *job, struct asking *asking, uint64_t *phases) {
    int queries = layer->heads * layer->dim, width = layer->kv_heads * layer->dim, stride = queries + 2 * width;
    int bf16 = layer->qkv.format != FP32, cut = queries / PANEL, end = up_to(stride, PANEL) / PANEL;
    float *q = space->qkv, *k = q + queries, *v = k + width;
    const struct packed *w = &layer->qkv;
    struct linear product = {space->normed, space->tiles, w->data, w->bias, w->scale, q, rows, w->k, w->columns, stride, PLAIN, w->format, 0};
    uint64_t clock = now_ns();
    if (queries % PANEL) cut = end;
    cloister_rms_norm(x, layer->hidden, rows, 1, layer->hidden, layer->attention_norm, layer->epsilon, space->normed, layer->hidden);
    tile(&product);
    panels(&product, 0, cut);
    norm_heads(layer, q, stride, rows, layer->heads, layer->q_norm);
    cloister_rotate_and_store(q, k, v, stride, rows, layer->heads, 0, layer->dim, layer->rotary, cosine, sine, slot, NULL, NULL, bf16, 0);
    ask(job, asking, layer->index);
    clock = spent(phases, QUERY, clock);
    if (cut < end) panels(&product, cut, end);
    norm_heads(layer, k, stride, rows, layer->kv_heads, layer->k_norm);
    cloister_rotate_and_store(q, k, v, stride, rows, 0, layer->kv_heads, layer->dim, layer->rotary, cosine, sine, slot,
                              (void *)job->keys, (void *)job->values, bf16, job->block);
    clock = spent(phases, KEY_VALUE, clock);
    share_out(attend, job, job->tiles * job->kv_heads);
    clock = spent(phases, OUTPUT_ATTENTION, clock);
    rest_team();
    await_all(asking);
    clock = spent(phases, WAITING, clock);
    take_answers(job, asking);
    spent(phases, MERGE, clock);
}

static void after_attention(const struct layer *layer, const struct workspace *space, float *x, int rows, const float *attended) {
    cloister_linear(attended, rows, &layer->out, ADD, x, layer->hidden, space->tiles);
    cloister_rms_norm(x, layer->hidden, rows, 1, layer->hidden, layer->mlp_norm, layer->epsilon, space->normed, layer->hidden);
    cloister_linear(space->normed, rows, &layer->gate_up, layer->gate_up.epilogue, space->gated, layer->gate_up.columns / 2, space->tiles);
    cloister_linear(space->gated, rows, &layer->down, ADD, x, layer->hidden, space->tiles);
}

/* All layers in one call, each reading and writing its own part of the cache. `job` holds what is the same for all. */
API void cloister_run_layers(const struct layer *const *layers, int count, const struct workspace *space, float *x, int rows,
                             const float *cosine, const float *sine, const int64_t *slot, const struct attention *same,
                             size_t cache_bytes_per_layer, struct asking *asking, uint64_t *phases) {
    struct attention job = *same;
    for (int i = 0; i < count; i++) {
        const struct layer *layer = layers[i];
        size_t offset = cache_bytes_per_layer * layer->index;
        job.keys = (const char *)same->keys + offset, job.values = (const char *)same->values + offset;
        job.scale = layer->scale, job.window = layer->window;
        if (asking) {
            partitioned_attention(layer, space, x, rows, cosine, sine, slot, &job, asking, phases);
        } else {
            before_attention(layer, space, x, rows, cosine, sine, slot, (void *)job.keys, (void *)job.values, job.block);
            cloister_attention(&job, NULL, layer->index);
        }
        uint64_t clock = now_ns();
        after_attention(layer, space, x, rows, job.out);
        spent(phases, REST, clock);
    }
}

#include "start.h"

/* Starts the thread that answers a vault's link; 0 if it runs. */
API int cloister_answer(struct answering *self) {
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attr, answer_loop, self);
    pthread_attr_destroy(&attr);
    while (!failed && !atomic_load(&self->started)) sched_yield(); /* it needs a call that the seal forbids */
    return failed;
}

/* From now on, attention compares its queries; NULL: it does not. */
API void cloister_compare(struct comparing *given) { comparing = given; }

/* How many members may be at work at once: the scratch of cloister_draw has a part for each. */
API int cloister_members(void) { return team.members; }

API void cloister_mask(float *row, const uint64_t *allowed, int words, int width) { mask_row(row, allowed, words, width); }

API void cloister_draw(const struct draw *job) { share_out(draw_row, job, job->rows); }
