/* Ops that only move elements: no arithmetic, every bit is kept. */

/* y[j, i] = x[i, j] of an m by n matrix. A group moves one 32 x 32 tile through local memory, so that both the reads
   and the writes of neighbouring work-items are neighbours; the odd row length keeps columns in different banks. */
KERNEL_WG(transpose, 32, 8, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 m, u64 n) {
    SHARED T tile[32][33];
    u32 lx = LID(0);
    u32 ly = LID(1);
    u64 across = (n + 31) / 32;
    u64 flat = FLAT_GRP();
    u64 i0 = flat / across * 32;
    u64 j0 = flat % across * 32;
    for (u32 r = ly; r < 32; r += 8) {
        if (i0 + r < m && j0 + lx < n) {
            tile[r][lx] = x[(i0 + r) * n + j0 + lx];
        }
    }
    BARRIER();
    for (u32 r = ly; r < 32; r += 8) {
        if (j0 + r < n && i0 + lx < m) {
            y[(j0 + r) * m + i0 + lx] = tile[lx][r];
        }
    }
}
