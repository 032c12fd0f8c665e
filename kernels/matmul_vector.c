/* y = alpha op(A) x + beta y. A group computes ROWS results, LANES work-items each; ROW_OF and LANE_OF lay the work-items
   out so that neighbours read neighbours of A: along a row of it, or along a column where A is transposed. */
KERNEL_WG(gemv, GROUP, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 m, u64 n, u64 a_row, u64 a_col,
 ACC alpha, ACC beta) {
    SHARED ACC tree[ROWS][LANES + 1];
    u32 own = ROW_OF(LID(0));
    u32 lane = LANE_OF(LID(0));
    u64 row = FLAT_GRP() * ROWS + own;
    ACC s = (ACC)0;
    if (row < m) {
        for (u64 j = lane; j < n; j += LANES) {
            s += LOAD(a, row * a_row + j * a_col) * LOAD(x, j);
        }
    }
    tree[own][lane] = s;
    BARRIER();
    for (u32 half_width = LANES / 2; half_width > 0; half_width /= 2) {
        if (lane < half_width) {
            tree[own][lane] += tree[own][lane + half_width];
        }
        BARRIER();
    }
    if (lane == 0 && row < m) {
        ACC v = alpha * tree[own][0];
        /* beta = 0 does not read y, which may hold anything. */
        if (beta != (ACC)0) {
            v += beta * LOAD(y, row);
        }
        STORE(y, row, v);
    }
}

/* The same for a processor, A being m by n: a work-item computes ROWS results one after the other, each by WIDE sums of
   neighbours. */
KERNEL_WG(gemv_rows, 1, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 m, u64 n, ACC alpha, ACC beta) {
    u64 first = FLAT_GRP() * ROWS;
    for (u64 row = first; row < MIN(first + ROWS, m); row++) {
        ACC s[WIDE];
        for (u32 l = 0; l < WIDE; l++) {
            s[l] = (ACC)0;
        }
        for (u64 j = 0; j < n; j += WIDE) {
            u32 width = (u32)MIN(n - j, WIDE);
            u64 at = row * n + j;
            EACH(l, width, WIDE, s[l] += LOAD(a, at + l) * LOAD(x, j + l);)
        }
        for (u32 w = WIDE / 2; w > 0; w /= 2) {
            for (u32 l = 0; l < w; l++) {
                s[l] += s[l + w];
            }
        }
        ACC v = alpha * s[0];
        if (beta != (ACC)0) {
            v += beta * LOAD(y, row);
        }
        STORE(y, row, v);
    }
}

/* The same for a processor, A being n by m and transposed: a work-item computes WIDE results from four rows at a time. */
KERNEL_WG(gemv_columns, 1, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 m, u64 n, ACC alpha, ACC beta) {
    u64 first = FLAT_GRP() * WIDE;
    if (first >= m) return;
    u32 width = (u32)MIN(m - first, WIDE);
    ACC s[WIDE];
    for (u32 l = 0; l < WIDE; l++) {
        s[l] = (ACC)0;
    }
    u64 fours = width == WIDE ? n / 4 * 4 : 0;
    for (u64 j = 0; j < fours; j += 4) {
        u64 at = j * m + first;
        ACC x0 = LOAD(x, j);
        ACC x1 = LOAD(x, j + 1);
        ACC x2 = LOAD(x, j + 2);
        ACC x3 = LOAD(x, j + 3);
        for (u32 l = 0; l < WIDE; l++) {
            ACC p = LOAD(a, at + l) * x0 + LOAD(a, at + m + l) * x1;
            ACC q = LOAD(a, at + 2 * m + l) * x2 + LOAD(a, at + 3 * m + l) * x3;
            s[l] += p + q;
        }
    }
    for (u64 j = fours; j < n; j++) {
        for (u32 l = 0; l < width; l++) {
            s[l] += LOAD(a, j * m + first + l) * LOAD(x, j);
        }
    }
    for (u32 l = 0; l < width; l++) {
        ACC v = alpha * s[l];
        if (beta != (ACC)0) {
            v += beta * LOAD(y, first + l);
        }
        STORE(y, first + l, v);
    }
}
