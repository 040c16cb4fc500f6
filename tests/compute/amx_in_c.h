/* AMX tiles in C, for processors without them: what Intel's manual says that TDPBSSD, TILELOADD and TILESTORED do, with tiles
 * of sixteen rows of 64 bytes. Included before the sources of the kernels. */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

static _Thread_local int8_t amx_tiles[8][16][64];

static void amx_load(int tile, const void *from, long stride) {
    for (int row = 0; row < 16; row++) memcpy(amx_tiles[tile][row], (const char *)from + row * stride, 64);
}

static void amx_store(int tile, void *to, long stride) {
    for (int row = 0; row < 16; row++) memcpy((char *)to + row * stride, amx_tiles[tile][row], 64);
}

static void amx_dot(int sums, int rows, int columns) {
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            int32_t sum;
            memcpy(&sum, amx_tiles[sums][m] + 4 * n, 4);
            for (int k = 0; k < 64; k++) sum += amx_tiles[rows][m][k] * amx_tiles[columns][k / 4][4 * n + k % 4];
            memcpy(amx_tiles[sums][m] + 4 * n, &sum, 4);
        }
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_loadconfig
#undef _tile_release
#define _tile_zero(tile) memset(amx_tiles[tile], 0, sizeof amx_tiles[tile])
#define _tile_loadd(tile, from, stride) amx_load(tile, from, stride)
#define _tile_stored(tile, to, stride) amx_store(tile, to, stride)
#define _tile_dpbssd(sums, rows, columns) amx_dot(sums, rows, columns)
#define _tile_loadconfig(shape) (void)(shape)
#define _tile_release()
