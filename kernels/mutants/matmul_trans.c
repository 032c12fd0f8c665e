/* Known to be wrong: A's strides are ignored, so a transposed A is read as if it were not. Replaces matmul.c; holds the
   entry `gemm`, without tiles. Shapes that miss it: transA = 0; with transA = 1 a single row or column of A (m = 1 or
   k = 1). A holds m*k elements either way, so nothing is read outside. */
KERNEL_WG(gemm, GROUP, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT c, u64 m, u64 n, u64 k, u64 a_row, u64 a_col,
 u64 b_row, u64 b_col, u64 batches, ACC alpha, ACC beta) {
    u64 across = (n + TN - 1) / TN;
    u64 flat = FLAT_GRP();
    for (u32 e = LID(0); e < TM * TN; e += GROUP) {
        u64 i = flat / across * TM + e / TN;
        u64 j = flat % across * TN + e % TN;
        if (i < m && j < n) {
            ACC s = (ACC)0;
            for (u64 p = 0; p < k; p++) {
                s += LOAD(a, i * k + p) * LOAD(b, p * b_row + j * b_col);
            }
            ACC v = alpha * s;
            if (beta != (ACC)0) {
                v += beta * LOAD(c, i * n + j);
            }
            STORE(c, i * n + j, v);
        }
    }
}
