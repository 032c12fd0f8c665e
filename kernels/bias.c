/* A bias per channel of [outer, c, inner]. */

/* y[i] = x[i] + b[channel of i] for i < n; ITEMS elements per work-item, a group's width apart. INDEX is u32 where every
   index fits, else u64: divisions of 64-bit numbers are many instructions. */
KERNEL_WG(bias_add, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT y, u64 n, u64 c, u64 inner) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            INDEX channel = (INDEX)i / (INDEX)inner % (INDEX)c;
            ACC v = LOAD(x, i);
            ACC w = LOAD(b, channel);
            STORE(y, i, v + w);
        }
    }
}
