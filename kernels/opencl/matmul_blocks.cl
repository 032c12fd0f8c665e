/* C = alpha op(A) op(B) + beta C as in matmul.c, for devices that are processors. A work-item computes a TM x TN tile of C
   alone: it copies TK columns of A and TK rows of B into local memory, in the order in which they are used, and multiplies
   strips of RM rows by stripes of RN vectors, whose sums stay in registers. VECTOR is LANES numbers of type ACC, as OpenCL C
   has them; processors have no other fast arithmetic. Sizes need not fit the tiles. */
#define STRIPE (RN * LANES)

KERNEL_WG(gemm_blocks, 1, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b, GLOBAL OUT *RESTRICT c, u64 m, u64 n, u64 k, u64 a_row,
 u64 a_col, u64 b_row, u64 b_col, u64 batches, ACC alpha, ACC beta) {
    SHARED ACC tile_a[TM / RM][TK][RM];
    SHARED VECTOR tile_b[TN / STRIPE][TK][RN];
    SHARED VECTOR sums[TM / RM][TN / STRIPE][RM][RN];
    u64 across = (n + TN - 1) / TN;
    u64 down = (m + TM - 1) / TM;
    u64 flat = FLAT_GRP();
    u64 batch = flat / (across * down);
    if (batch >= batches) return;
    u64 row0 = flat / across % down * TM;
    u64 col0 = flat % across * TN;
    u32 height = (u32)MIN(m - row0, TM);
    u32 width = (u32)MIN(n - col0, TN);
    u64 a0 = batch * m * k + row0 * a_row;
    u64 b0 = batch * k * n + col0 * b_col;
    u64 c0 = (batch * m + row0) * n + col0;
    for (u32 s = 0; s * RM < height; s++) {
        for (u32 t = 0; t * STRIPE < width; t++) {
            for (u32 i = 0; i < RM; i++) {
                for (u32 j = 0; j < RN; j++) {
                    sums[s][t][i][j] = (VECTOR)0;
                }
            }
        }
    }
    for (u64 k0 = 0; k0 < k; k0 += TK) {
        u32 depth = (u32)MIN(k - k0, TK);
        for (u32 s = 0; s * RM < height; s++) {
            for (u32 p = 0; p < depth; p++) {
                for (u32 i = 0; i < RM; i++) {
                    /* Rows beyond the last are its copies: nobody stores their sums. */
                    tile_a[s][p][i] = LOAD(a, a0 + MIN(s * RM + i, height - 1) * a_row + (k0 + p) * a_col);
                }
            }
        }
        for (u32 t = 0; t * STRIPE < width; t++) {
            u32 columns = MIN(width - t * STRIPE, STRIPE);
            for (u32 p = 0; p < depth; p++) {
                LOCAL ACC *line = (LOCAL ACC *)tile_b[t][p];
                for (u32 j = 0; j < STRIPE; j++) {
                    line[j] = j < columns ? LOAD(b, b0 + (k0 + p) * b_row + (t * STRIPE + j) * b_col) : (ACC)0;
                }
            }
        }
        for (u32 t = 0; t * STRIPE < width; t++) {
            for (u32 s = 0; s * RM < height; s++) {
                VECTOR sum[RM][RN];
#pragma unroll
                for (u32 i = 0; i < RM; i++) {
#pragma unroll
                    for (u32 j = 0; j < RN; j++) {
                        sum[i][j] = sums[s][t][i][j];
                    }
                }
                for (u32 p = 0; p < depth; p++) {
                    VECTOR right[RN];
#pragma unroll
                    for (u32 j = 0; j < RN; j++) {
                        right[j] = tile_b[t][p][j];
                    }
#pragma unroll
                    for (u32 i = 0; i < RM; i++) {
                        VECTOR left = (VECTOR)tile_a[s][p][i];
#pragma unroll
                        for (u32 j = 0; j < RN; j++) {
                            sum[i][j] += left * right[j];
                        }
                    }
                }
#pragma unroll
                for (u32 i = 0; i < RM; i++) {
#pragma unroll
                    for (u32 j = 0; j < RN; j++) {
                        sums[s][t][i][j] = sum[i][j];
                    }
                }
            }
        }
    }
    for (u32 i = 0; i < height; i++) {
        for (u32 t = 0; t * STRIPE < width; t++) {
            LOCAL const ACC *line = (LOCAL const ACC *)sums[i / RM][t][i % RM];
            u32 columns = MIN(width - t * STRIPE, STRIPE);
            for (u32 j = 0; j < columns; j++) {
                u64 at = c0 + i * n + t * STRIPE + j;
                ACC v = alpha * line[j];
                /* beta = 0 does not read C, which may hold anything. */
                if (beta != (ACC)0) {
                    v += beta * LOAD(c, at);
                }
                STORE_OUT(c, at, v);
            }
        }
    }
}
