/* Private layers: a vault computes the first layers of its answers' tokens itself, so that what its prompt adds to their
 * attention is nowhere else. A question START has a token for each row; the answer has the rows' hidden states before
 * layer `first`. The vault's answers are rows of a batch whose spans are its slots: tables, segments, rotations. */
#pragma once
#include "link.h"

#define START_ROWS 16 /* computed together: the scratch is for so many */

struct begun {
    int32_t origin, limit, first_block; /* the answer's first position, most tokens, and first block in the slot's table */
};

struct starting {
    const struct layer *const *layers;
    const struct packed *embedding;
    const struct workspace *space;
    const struct attention *job; /* its spans are slots, its tiles rows; it reads the next four */
    int32_t *tables, *span, *position;
    struct begun *begun; /* [slot_count] */
    int64_t *token, *place;
    float *x, *cosine, *sine;
    const float *cosines, *sines; /* [positions][rotary] */
    uint64_t *phases;
    int hidden, rotary, vocabulary, positions;
};

/* The first token of this index, or the same once more, and none before those ahead of it. Layer 0 of the record has it. */
static int record_start(const struct answering *self, const struct ask_row *ask, int32_t token) {
    struct slot *slot = self->slots + ask->slot;
    int asked = atomic_load(&slot->asked);
    if (ask->index > asked) return 0;
    if (ask->index < self->recorded) {
        uint64_t *known = self->record + (size_t)ask->slot * self->layers * self->recorded + ask->index;
        if (*known && *known != (ASKED | (uint64_t)token)) return 0;
        *known = ASKED | (uint64_t)token;
    }
    if (ask->index == asked) atomic_store(&slot->asked, asked + 1);
    return 1;
}

static int place_row(const struct answering *self, uint32_t from, int to) {
    const struct starting *s = self->starting;
    struct ask_row ask;
    int32_t token;
    memcpy(&ask, self->question->row + from, sizeof ask);
    memcpy(&token, (const int32_t *)queries_of(self->question, (uint32_t)self->capacity) + from, sizeof token);
    if (ask.slot < 0 || ask.slot >= self->slot_count || token < 0 || token >= s->vocabulary) return 0;
    if (!atomic_load(&self->slots[ask.slot].exposed)) return 0;
    const struct begun *begun = s->begun + ask.slot;
    int64_t position = (int64_t)begun->origin + ask.index;
    if (ask.index < 0 || ask.index >= begun->limit || position >= s->positions || !record_start(self, &ask, token)) return 0;
    int32_t block = s->tables[(size_t)ask.slot * s->job->table_stride + begun->first_block + ask.index / BLOCK];
    s->token[to] = token, s->span[to] = ask.slot, s->position[to] = (int32_t)position;
    s->place[to] = (int64_t)block * BLOCK + ask.index % BLOCK;
    memcpy(s->cosine + (size_t)to * s->rotary, s->cosines + (size_t)position * s->rotary, sizeof(float) * s->rotary);
    memcpy(s->sine + (size_t)to * s->rotary, s->sines + (size_t)position * s->rotary, sizeof(float) * s->rotary);
    return 1;
}

static int start_rows(struct answering *self, uint32_t rows) {
    const struct starting *s = self->starting;
    alone = 1;
    for (uint32_t done = 0; done < rows; done += START_ROWS) {
        int count = rows - done < START_ROWS ? (int)(rows - done) : START_ROWS;
        for (int r = 0; r < count; r++)
            if (!place_row(self, done + (uint32_t)r, r)) return LINK_MALFORMED;
        struct attention job = *s->job;
        job.tiles = count;
        cloister_embed(s->embedding, s->token, count, s->x);
        cloister_run_layers(s->layers, self->first, s->space, s->x, count, s->cosine, s->sine, s->place, &job,
                            self->cache_bytes_per_layer, NULL, s->phases);
        memcpy(self->reply->part + (size_t)done * s->hidden, s->x, sizeof(float) * (size_t)count * s->hidden);
    }
    self->reply->rows = rows;
    return FINE;
}

/* The slot is answered for no more when this returns: its blocks may be another's. */
API void cloister_withdraw(struct answering *self, int slot) {
    atomic_store(&self->slots[slot].exposed, 0);
    while (atomic_load(&self->busy)) sched_yield();
}

/* The service's side: rows of x come from the vaults, zeros where one fails. `tokens` has one for each row of the batch. */
API void cloister_take_starts(struct asking *asking, const int64_t *tokens, float *x, int hidden) {
    asking->waited_ns = 0;
    for (int i = 0; i < asking->count; i++) {
        struct asked *link = asking->links[i];
        if (link->verdict != FINE) continue;
        int32_t *to = (int32_t *)queries_of(link->question, link->capacity);
        for (uint32_t r = 0; r < link->rows; r++)
            link->question->row[r] = link->ask[r], to[r] = (int32_t)tokens[link->row[r]];
        post(link, START);
    }
    wake_all(asking);
    rest_team();
    await_all(asking);
    for (int i = 0; i < asking->count; i++) {
        struct asked *link = asking->links[i];
        if (link->verdict == FINE && (link->reply->status != FINE || link->reply->rows != link->rows)) link->verdict = LINK_MALFORMED;
        for (uint32_t r = 0; r < link->rows; r++) {
            float *to = x + (size_t)link->row[r] * hidden;
            lanes zero = all(0.0f);
            if (link->verdict == FINE) memcpy(to, link->reply->part + (size_t)r * hidden, sizeof(float) * hidden);
            for (int d = 0; d < hidden; d += WIDTH) zero += load(to + d) * 0.0f;
            if (link->verdict == FINE && sum(zero) != 0.0f) link->verdict = LINK_MALFORMED; /* not all are numbers */
            if (link->verdict != FINE) memset(to, 0, sizeof(float) * hidden);
        }
    }
}
