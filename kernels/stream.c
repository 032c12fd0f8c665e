/* Ops that stream their operands once. ITEMS elements per work-item, a group's width apart, so that neighbours read
   neighbours. */

/* y[i] += alpha * x[i] for i < n. */
KERNEL_WG(axpy, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n, ACC alpha) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            ACC v = LOAD(y, i);
            STORE(y, i, v + alpha * LOAD(x, i));
        }
    }
}

/* x[i] *= alpha for i < n. */
KERNEL_WG(scal, GROUP, 1, 1)(GLOBAL T *RESTRICT x, u64 n, ACC alpha) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            STORE(x, i, alpha * LOAD(x, i));
        }
    }
}

/* y[i] = a[i] + alpha * b[i] for i < n. */
KERNEL_WG(triad, GROUP, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT y, u64 n, ACC alpha) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            STORE(y, i, LOAD(a, i) + alpha * LOAD(b, i));
        }
    }
}

/* y[from + i] = x[from + i] for i < n, whatever they hold: T is a word, or an element of what is left behind whole words. */
KERNEL_WG(copy, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 from, u64 n) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            y[from + i] = x[from + i];
        }
    }
}

/* Even words become `even`, odd ones `odd`: elements of 8 bytes have two words, shorter ones repeat within one. */
KERNEL_WG(fill, GROUP, 1, 1)(GLOBAL u32 *RESTRICT y, u64 words, u32 even, u32 odd) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, words); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, words)) {
            y[i] = i % 2 == 0 ? even : odd;
        }
    }
}
