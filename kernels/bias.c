/* A bias per channel of [outer, c, inner]. */

/* y[i] = x[i] + b[channel of i] for i < n; ITEMS elements per work-item, a group's width apart. Divisions by 32-bit
   numbers where they fit: those by 64-bit ones are many instructions. */
KERNEL_WG(bias_add, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT y, u64 n, u64 c, u64 inner) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < ITEMS; j++) {
        u64 i = first + j * GROUP;
        if (i < n) {
            u64 channel = n >> 32 == 0 ? (u64)((u32)i / (u32)inner % (u32)c) : i / inner % c;
            ACC v = LOAD(x, i);
            ACC w = LOAD(b, channel);
            STORE(y, i, v + w);
        }
    }
}
