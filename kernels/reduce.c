/* Sums over the middle axis of [outer, n, inner]. An axis longer than `segment` is summed in `parts` pieces; a second
   launch sums the pieces, so the order of additions never depends on timing. GROUP is a power of two. */

/* inner = 1: group (row, part) sums x[row, part*segment ..] in a tree and stores y[row, part]. */
KERNEL_WG(sum_rows, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL OUT *RESTRICT y, u64 outer, u64 n, u64 segment, u64 parts) {
    SHARED ACC tree[GROUP];
    u32 lid = LID(0);
    u64 flat = FLAT_GRP();
    u64 row = flat / parts;
    u64 begin = (flat - row * parts) * segment;
    /* Groups beyond the last row sum nothing; they still reach every barrier. */
    u64 length = row < outer ? (n - begin < segment ? n - begin : segment) : 0;
    u64 base = row * n + begin;
    ACC s = (ACC)0;
    for (u64 i = lid; i < length; i += GROUP) {
        s += LOAD(x, base + i);
    }
    tree[lid] = s;
    BARRIER();
    for (u32 half_width = GROUP / 2; half_width > 0; half_width /= 2) {
        if (lid < half_width) {
            tree[lid] += tree[lid + half_width];
        }
        BARRIER();
    }
    if (lid == 0 && row < outer) {
        STORE_OUT(y, flat, tree[0]);
    }
}

/* inner > 1: one work-item per (outer, part, inner) walks down its column; neighbours read neighbouring columns.
   Stores y[outer, part, inner]. */
KERNEL_WG(sum_columns, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL OUT *RESTRICT y, u64 outer, u64 n, u64 inner, u64 segment, u64 parts) {
    u64 item = FLAT_GRP() * GROUP + LID(0);
    if (item < outer * parts * inner) {
        u64 rest = item / inner;
        u64 column = item - rest * inner;
        u64 row = rest / parts;
        u64 begin = (rest - row * parts) * segment;
        u64 end = n - begin < segment ? n : begin + segment;
        ACC s = (ACC)0;
        for (u64 i = begin; i < end; i++) {
            s += LOAD(x, (row * n + i) * inner + column);
        }
        STORE_OUT(y, item, s);
    }
}
