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

/* The same for a processor: a work-item moves a block of BLOCK x BLOCK through memory of its own, rows in, columns out; the
   odd row length keeps columns in different sets of a cache. */
KERNEL_WG(transpose_blocks, 1, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 m, u64 n) {
    T block[BLOCK][BLOCK + 1];
    u64 across = (n + BLOCK - 1) / BLOCK;
    u64 flat = FLAT_GRP();
    u64 i0 = flat / across * BLOCK;
    u64 j0 = flat % across * BLOCK;
    if (i0 >= m) return;
    u64 rows = MIN(m - i0, BLOCK);
    u64 columns = MIN(n - j0, BLOCK);
    for (u64 i = 0; i < rows; i++) {
        for (u64 j = 0; j < columns; j++) {
            block[i][j] = x[(i0 + i) * n + j0 + j];
        }
    }
    for (u64 j = 0; j < columns; j++) {
        for (u64 i = 0; i < rows; i++) {
            y[(j0 + j) * m + i0 + i] = block[i][j];
        }
    }
}

/* The same in place for an n by n matrix: group (i, j) with i <= j swaps tile (i, j) with tile (j, i). Groups below the
   diagonal find nothing to do; those on it hold one tile twice. No tile is read after it was written by another group. */
KERNEL_WG(transpose_inplace, 32, 8, 1)(GLOBAL T *x, u64 n) {
    SHARED T upper[32][33];
    SHARED T lower[32][33];
    u32 lx = LID(0);
    u32 ly = LID(1);
    u64 across = (n + 31) / 32;
    u64 flat = FLAT_GRP();
    u64 i0 = flat / across * 32;
    u64 j0 = flat % across * 32;
    /* Rows from n on do not exist, nor do tiles below the diagonal for this group. */
    u64 end = i0 <= j0 ? n : 0;
    for (u32 r = ly; r < 32; r += 8) {
        if (i0 + r < end && j0 + lx < end) {
            upper[r][lx] = x[(i0 + r) * n + j0 + lx];
        }
        if (j0 + r < end && i0 + lx < end) {
            lower[r][lx] = x[(j0 + r) * n + i0 + lx];
        }
    }
    BARRIER();
    for (u32 r = ly; r < 32; r += 8) {
        if (j0 + r < end && i0 + lx < end) {
            x[(j0 + r) * n + i0 + lx] = upper[lx][r];
        }
        if (i0 + r < end && j0 + lx < end && i0 != j0) {
            x[(i0 + r) * n + j0 + lx] = lower[lx][r];
        }
    }
}

/* The same for a processor: work-item (i, j) with i <= j swaps two blocks through memory of its own. */
KERNEL_WG(transpose_inplace_blocks, 1, 1, 1)(GLOBAL T *x, u64 n) {
    T upper[BLOCK][BLOCK + 1];
    T lower[BLOCK][BLOCK + 1];
    u64 across = (n + BLOCK - 1) / BLOCK;
    u64 flat = FLAT_GRP();
    u64 i0 = flat / across * BLOCK;
    u64 j0 = flat % across * BLOCK;
    if (i0 >= n || i0 > j0) return;
    u64 rows = MIN(n - i0, BLOCK);
    u64 columns = MIN(n - j0, BLOCK);
    for (u64 i = 0; i < rows; i++) {
        for (u64 j = 0; j < columns; j++) {
            upper[i][j] = x[(i0 + i) * n + j0 + j];
        }
    }
    for (u64 j = 0; j < columns; j++) {
        for (u64 i = 0; i < rows; i++) {
            lower[j][i] = x[(j0 + j) * n + i0 + i];
        }
    }
    for (u64 j = 0; j < columns; j++) {
        for (u64 i = 0; i < rows; i++) {
            x[(j0 + j) * n + i0 + i] = upper[i][j];
        }
    }
    /* A block on the diagonal is its own counterpart: the second store writes what the first did. */
    for (u64 i = 0; i < rows; i++) {
        for (u64 j = 0; j < columns; j++) {
            x[(i0 + i) * n + j0 + j] = lower[j][i];
        }
    }
}
