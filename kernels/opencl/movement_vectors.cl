/* Transposition for devices that are processors, 16 by 16 elements at a time, which stay in registers. VECTOR is 16 elements
   of type T as OpenCL C has them; only bits move, so T is the unsigned integer of their width. A work-item takes a square of
   SIDE x SIDE: few enough pages that the processor keeps their translations. It asks for what it reads AHEAD of itself. */

/* The vectors i and i + step of r exchange what lies `step` apart, for every i without that bit: `first` and `second` are
   the places of their new elements among the 32 of both. Vectors of halves would be several instructions each. */
#define EXCHANGE(step, first, second) \
    _Pragma("unroll") for (u32 i = 0; i < 16; i++) { \
        if ((i & (step)) == 0) { \
            VECTOR a = r[i]; \
            VECTOR b = r[i + (step)]; \
            r[i] = __builtin_shufflevector(a, b, first); \
            r[i + (step)] = __builtin_shufflevector(a, b, second); \
        } \
    }
#define LIST(...) __VA_ARGS__

/* r[i][j] and r[j][i] change places. */
FUNCTION void turn(VECTOR *r) {
    EXCHANGE(8, LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
             LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    EXCHANGE(4, LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
             LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    EXCHANGE(2, LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
             LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    EXCHANGE(1, LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
             LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
}

/* y[j, i] = x[i, j] of an m by n matrix. Where rows of y are whole lines and y is larger than a cache (`past`), lines are
   stored past the caches, which would first read them. */
KERNEL_WG(transpose_vectors, 1, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 m, u64 n, u32 past) {
    u64 across = (n + SIDE - 1) / SIDE;
    u64 flat = FLAT_GRP();
    u64 i0 = flat / across * SIDE;
    u64 j0 = flat % across * SIDE;
    u64 i1 = MIN(i0 + SIDE, m);
    u64 j1 = MIN(j0 + SIDE, n);
    bool lines = past != 0 && m % 16 == 0 && (u64)y % sizeof(VECTOR) == 0;
    for (u64 i = i0; i < i1; i += 16) {
        for (u64 j = j0; j < j1; j += 16) {
            if (i + 16 <= i1 && j + 16 <= j1) {
                VECTOR r[16];
#pragma unroll
                for (u32 k = 0; k < 16; k++) {
                    r[k] = vload16(0, &x[(i + k) * n + j]);
                    PREFETCH(x + (i + k) * n + MIN(j + AHEAD, n - 1));
                }
                turn(r);
#pragma unroll
                for (u32 k = 0; k < 16; k++) {
                    if (lines) {
                        STORE_PAST((GLOBAL VECTOR *)&y[(j + k) * m + i], r[k]);
                    } else {
                        vstore16(r[k], 0, &y[(j + k) * m + i]);
                    }
                }
            } else {
                for (u64 q = j; q < MIN(j + 16, j1); q++) {
                    for (u64 p = i; p < MIN(i + 16, i1); p++) {
                        y[q * m + p] = x[p * n + q];
                    }
                }
            }
        }
    }
}

/* The same in place for an n by n matrix: work-item (i, j) with i <= j swaps two squares, or turns one on the diagonal. */
KERNEL_WG(transpose_inplace_vectors, 1, 1, 1)(GLOBAL T *x, u64 n) {
    u64 across = (n + SIDE - 1) / SIDE;
    u64 flat = FLAT_GRP();
    u64 i0 = flat / across * SIDE;
    u64 j0 = flat % across * SIDE;
    if (i0 > j0) return;
    u64 i1 = MIN(i0 + SIDE, n);
    u64 j1 = MIN(j0 + SIDE, n);
    for (u64 i = i0; i < i1; i += 16) {
        for (u64 j = i0 == j0 ? i : j0; j < j1; j += 16) {
            if (i + 16 <= i1 && j + 16 <= j1) {
                /* On the diagonal both are one: the second store writes what the first did. */
                VECTOR upper[16];
                VECTOR lower[16];
#pragma unroll
                for (u32 k = 0; k < 16; k++) {
                    upper[k] = vload16(0, &x[(i + k) * n + j]);
                    lower[k] = vload16(0, &x[(j + k) * n + i]);
                    PREFETCH(x + (i + k) * n + MIN(j + AHEAD, n - 1));
                    PREFETCH(x + MIN(j + AHEAD / 2 + k, n - 1) * n + i);
                }
                turn(upper);
                turn(lower);
#pragma unroll
                for (u32 k = 0; k < 16; k++) {
                    vstore16(upper[k], 0, &x[(j + k) * n + i]);
                    vstore16(lower[k], 0, &x[(i + k) * n + j]);
                }
            } else {
                for (u64 p = i; p < MIN(i + 16, i1); p++) {
                    for (u64 q = MAX(j, p + 1); q < MIN(j + 16, j1); q++) {
                        T v = x[p * n + q];
                        x[p * n + q] = x[q * n + p];
                        x[q * n + p] = v;
                    }
                }
            }
        }
    }
}
