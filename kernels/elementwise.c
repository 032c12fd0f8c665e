/* Elementwise ops. EXPR(x, b) is the op's expression; ITEMS elements per work-item, a group's width apart, so that
   neighbours read neighbours. */

/* y[i] = EXPR(x[i]) for i < n. */
KERNEL_WG(unary, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < ITEMS; j++) {
        u64 i = first + j * GROUP;
        if (i < n) {
            ACC v = LOAD(x, i);
            STORE(y, i, EXPR(v, v));
        }
    }
}

/* y[i] = EXPR(a[i], b[i]) for i < n. */
KERNEL_WG(binary, GROUP, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT y, u64 n) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < ITEMS; j++) {
        u64 i = first + j * GROUP;
        if (i < n) {
            ACC v = LOAD(a, i);
            ACC w = LOAD(b, i);
            STORE(y, i, EXPR(v, w));
        }
    }
}

/* The same over an output of d0 x d1 x d2 x d3 elements; a stride of 0 repeats the operand along that axis. */
KERNEL_WG(binary_broadcast, GROUP, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT y, u64 n, u64 d0, u64 d1, u64 d2, u64 d3,
 u64 a0, u64 a1, u64 a2, u64 a3, u64 b0, u64 b1, u64 b2, u64 b3) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < ITEMS; j++) {
        u64 i = first + j * GROUP;
        if (i < n) {
            u64 rest = i / d3;
            u64 i3 = i - rest * d3;
            u64 i2 = rest % d2;
            rest = rest / d2;
            u64 i1 = rest % d1;
            u64 i0 = rest / d1;
            ACC v = LOAD(a, i0 * a0 + i1 * a1 + i2 * a2 + i3 * a3);
            ACC w = LOAD(b, i0 * b0 + i1 * b1 + i2 * b2 + i3 * b3);
            STORE(y, i, EXPR(v, w));
        }
    }
}
