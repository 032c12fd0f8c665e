/* C = alpha op(A) op(B) + beta C, row-major, for `batches` problems that lie one behind the other. A group computes a
   TM x TN tile of C in steps of TK through local memory; a work-item holds RM x RN results. Row and column strides of A
   and B stand for transposition. Sizes need not fit the tiles. A work-item's results lie apart, neighbours' side by side: no
   bank conflicts, coalesced stores. */
KERNEL_WG(gemm, GROUP, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b, GLOBAL OUT *RESTRICT c, u64 m, u64 n, u64 k, u64 a_row,
 u64 a_col, u64 b_row, u64 b_col, u64 batches, ACC alpha, ACC beta) {
    SHARED ACC tile_a[TK][TM + 1];
    SHARED ACC tile_b[TK][TN + 1];
    u32 lid = LID(0);
    u32 tx = lid % (TN / RN);
    u32 ty = lid / (TN / RN);
    u64 across = (n + TN - 1) / TN;
    u64 down = (m + TM - 1) / TM;
    u64 flat = FLAT_GRP();
    /* 32 bits, and offsets made where they are used: with 8x8 results the registers would not do for more on sm_80. */
    u32 batch = (u32)(flat / (across * down));
    flat -= batch * (across * down);
    u64 row0 = flat / across * TM;
    u64 col0 = flat % across * TN;
    /* Groups behind the last problem multiply nothing and store nothing. */
    u64 rows = batch < batches ? m : 0;
    u64 depth = batch < batches ? k : 0;
    ACC acc[RM][RN];
    for (u32 i = 0; i < RM; i++) {
        for (u32 j = 0; j < RN; j++) {
            acc[i][j] = (ACC)0;
        }
    }
    for (u64 k0 = 0; k0 < depth; k0 += TK) {
        /* Neighbours read along the axis that is contiguous in memory. */
        for (u32 e = lid; e < TM * TK; e += GROUP) {
            u32 r = a_col == 1 ? e / TK : e % TM;
            u32 p = a_col == 1 ? e % TK : e / TM;
            u64 row = row0 + r;
            u64 col = k0 + p;
            ACC v = (ACC)0;
            if (row < rows && col < k) {
                v = LOAD(a, batch * m * k + row * a_row + col * a_col);
            }
            tile_a[p][r] = v;
        }
        for (u32 e = lid; e < TK * TN; e += GROUP) {
            u32 p = b_col == 1 ? e / TN : e % TK;
            u32 r = b_col == 1 ? e % TN : e / TK;
            u64 row = k0 + p;
            u64 col = col0 + r;
            ACC v = (ACC)0;
            if (row < k && col < n) {
                v = LOAD(b, batch * k * n + row * b_row + col * b_col);
            }
            tile_b[p][r] = v;
        }
        BARRIER();
        for (u32 p = 0; p < TK; p++) {
            ACC left[RM];
            ACC right[RN];
            for (u32 i = 0; i < RM; i++) {
                left[i] = tile_a[p][ty + i * (TM / RM)];
            }
            for (u32 j = 0; j < RN; j++) {
                right[j] = tile_b[p][tx + j * (TN / RN)];
            }
            for (u32 i = 0; i < RM; i++) {
                for (u32 j = 0; j < RN; j++) {
                    acc[i][j] += left[i] * right[j];
                }
            }
        }
        BARRIER();
    }
    for (u32 i = 0; i < RM; i++) {
        u64 row = row0 + ty + i * (TM / RM);
        for (u32 j = 0; j < RN; j++) {
            u64 col = col0 + tx + j * (TN / RN);
            if (row < rows && col < n) {
                ACC v = alpha * acc[i][j];
                /* beta = 0 does not read C, which may hold anything. */
                if (beta != (ACC)0) {
                    v += beta * LOAD(c, (batch * m + row) * n + col);
                }
                STORE_OUT(c, (batch * m + row) * n + col, v);
            }
        }
    }
}
