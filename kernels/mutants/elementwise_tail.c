/* Known to be wrong: an off-by-one tail. Only whole groups are computed, so the last n % GROUP elements are left out.
   Replaces elementwise.c; holds the entry `unary`. Shapes that miss it: n a multiple of GROUP (256, 65536), and n = 0. */
KERNEL_WG(unary, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < ITEMS; j++) {
        u64 i = first + j * GROUP;
        if (i < n / GROUP * GROUP) {
            ACC v = LOAD(x, i);
            STORE(y, i, EXPR(v, v));
        }
    }
}
