/* One stage of a product: 64 columns of a weight × ROWS rows, STEP values of k, summed by four warps together.
 *
 * Both factors lie in shared memory in pieces of eight values of k: [k / 8][column or row][8]. Eight columns of a piece are
 * the 128 bytes that tensor cores read at once. Warp w of the four has columns 16w to 16w + 15; a lane has, of each eight
 * rows, columns g and g + 8 of rows 2t and 2t + 1 (g = lane / 4, t = lane % 4).
 *
 * A tensor operation adds sixteen values of k to a sum, from the stage's beginning to its end; how many rows are multiplied
 * at once does not change a row's bits (checks.py). Hopper's tensor cores fetch both factors themselves; other processors'
 * warps do it for them. */
#define STEP 64 /* k per stage */
#define TILE 64 /* columns that lie together */
#define TILE_BYTES (STEP * TILE * 2)
#define PIECE_K 8

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define LIST_4 "%0,%1,%2,%3"
#define LIST_8 LIST_4 ",%4,%5,%6,%7"
#define LIST_16 LIST_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LIST_32 LIST_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LIST_64                                                                                               \
    LIST_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55" \
            ",%56,%57,%58,%59,%60,%61,%62,%63"
#define LIST_128                                                                                                        \
    LIST_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89"  \
            ",%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112" \
            ",%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define SUMS_4(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define SUMS_8(i) SUMS_4(i), SUMS_4(i + 1)
#define SUMS_16(i) SUMS_8(i), SUMS_8(i + 2)
#define SUMS_32(i) SUMS_16(i), SUMS_16(i + 4)
#define SUMS_64(i) SUMS_32(i), SUMS_32(i + 8)
#define SUMS_128(i) SUMS_64(i), SUMS_64(i + 16)
#define TENSOR(rows, sums, weight_at, rows_at, added)                                                                     \
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, " added ", 0;\n"                                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #rows "k16.f32.bf16.bf16 {" LIST_##sums "}, " weight_at ", " rows_at \
                 ", more, 1, 1, 0, 0;\n}"                                                                                 \
                 : SUMS_##sums(0)                                                                                         \
                 : "l"(weight), "l"(laid), "r"(more))
template <int ROWS> INLINE void tensor(float (*c)[4], unsigned long long weight, unsigned long long laid, int more) {
    if constexpr (ROWS == 8) TENSOR(8, 4, "%4", "%5", "%6");
    if constexpr (ROWS == 16) TENSOR(16, 8, "%8", "%9", "%10");
    if constexpr (ROWS == 32) TENSOR(32, 16, "%16", "%17", "%18");
    if constexpr (ROWS == 64) TENSOR(64, 32, "%32", "%33", "%34");
    if constexpr (ROWS == 128) TENSOR(128, 64, "%64", "%65", "%66");
    if constexpr (ROWS == 256) TENSOR(256, 128, "%128", "%129", "%130");
}

/* Where a factor lies, for a tensor operation: the next eight values of k are `next` bytes on, the next eight columns or
 * rows 128. */
INLINE unsigned long long factor(unsigned at, int next) {
    return (unsigned long long)((at & 0x3ffff) >> 4) | (unsigned long long)(next >> 4) << 16 | (unsigned long long)(128 >> 4) << 32;
}
#endif

INLINE unsigned piece_at(unsigned at, int piece, int columns) { return at + piece * columns * PIECE_K * 2; }

/* Four warps keep EACH registers of what they were launched with, or wait until others of their block left that many. */
template <int EACH> INLINE void leave_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(EACH));
#endif
}
template <int EACH> INLINE void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(EACH));
#endif
}

/* Before each stage. */
INLINE void begin_stage() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

/* Until all stages but the last LEFT are summed: what they read may be overwritten. */
template <int LEFT> INLINE void finish_stages() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}

/* Begins to sum a stage's products in c[ROWS / 8][4]: added to what is there, or the first. MOST rows at once: more need more
 * registers. ROWS rows lie at `rows_at`. */
template <int ROWS, int MOST> INLINE void multiply_stage(float (*c)[4], unsigned weight_at, unsigned rows_at, bool first) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        const unsigned long long weight = factor(piece_at(weight_at, 2 * k, TILE), TILE * PIECE_K * 2);
        const unsigned from = piece_at(rows_at, 2 * k, ROWS);
        constexpr int ONE = ROWS < MOST ? ROWS : MOST, NEXT = ROWS * PIECE_K * 2;
        const int more = k || !first;
        tensor<ONE>(c, weight, factor(from, NEXT), more);
        if constexpr (ROWS > ONE) tensor<ROWS - ONE>(c + ONE / 8, weight, factor(from + ONE * PIECE_K * 2, NEXT), more);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    const int lane = threadIdx.x & 31, quarter = (threadIdx.x >> 5) & 3;
    if (first)
#pragma unroll
        for (int j = 0; j < ROWS / 2; j++) (&c[0][0])[j] = 0.0f;
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        const unsigned at = piece_at(weight_at, 2 * k + (lane >> 4), TILE) + (16 * quarter + (lane & 15)) * PIECE_K * 2;
        unsigned a[4], b[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                     : "r"(at));
#pragma unroll
        for (int m = 0; m < ROWS / 8; m++) {
            const unsigned from = piece_at(rows_at, 2 * k + (lane >> 3 & 1), ROWS) + (8 * m + (lane & 7)) * PIECE_K * 2;
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(b[0]), "=r"(b[1]) : "r"(from));
            multiply(c[m], a[0], a[1], a[2], a[3], b[0], b[1]);
        }
    }
#endif
}
