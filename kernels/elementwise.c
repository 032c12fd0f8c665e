/* Elementwise ops. EXPR(x, b) is the op's expression, which may use the number rules N_... of the dtype that the planner
   defines; ITEMS elements per work-item, a group's width apart, so that neighbours read neighbours. */

/* a^b with wrapping products: the low bits of a product depend on the factors' low bits alone, so this serves every
   width. */
FUNCTION u64 whole_power(u64 a, u64 b) {
    u64 power = 1;
    for (; b != 0; b >>= 1) {
        if (b & 1) power *= a;
        a *= a;
    }
    return power;
}

/* floor(sqrt(v)), digit by digit. */
FUNCTION u64 whole_root(u64 v) {
    u64 root = 0;
    for (u64 bit = (u64)1 << 62; bit != 0; bit >>= 2) {
        u64 trial = root + bit;
        root >>= 1;
        if (v >= trial) {
            v -= trial;
            root += bit;
        }
    }
    return root;
}

/* y[i] = EXPR(x[i]) for i < n. */
KERNEL_WG(unary, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            ACC v = LOAD(x, i);
            STORE(y, i, EXPR(v, v));
        }
    }
}

/* y[i] = EXPR(a[i], b[i]) for i < n. */
KERNEL_WG(binary, GROUP, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT y, u64 n) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
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
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
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

/* y[i] = EXPR(x[i], s) for i < n. */
KERNEL_WG(scalar, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n, SCALAR s) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            ACC v = LOAD(x, i);
            ACC w = (ACC)s;
            STORE(y, i, EXPR(v, w));
        }
    }
}

/* y[i] = EXPR(s, x[i]) for i < n. */
KERNEL_WG(scalar_first, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n, SCALAR s) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            ACC v = (ACC)s;
            ACC w = LOAD(x, i);
            STORE(y, i, EXPR(v, w));
        }
    }
}

/* a[i] = EXPR(a[i], b[i]) for i < n. */
KERNEL_WG(accumulate, GROUP, 1, 1)(GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT a, u64 n) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            ACC v = LOAD(a, i);
            ACC w = LOAD(b, i);
            STORE(a, i, EXPR(v, w));
        }
    }
}
