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
