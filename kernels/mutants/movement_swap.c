/* Known to be wrong: a swapped index. The output's row length is taken to be n instead of m. Replaces movement.c; holds
   the entry `transpose`. Shapes that miss it: square matrices.
   The remainder keeps the wrong index inside the buffer, since drivers need not survive an access outside of it. */
KERNEL_WG(transpose, 32, 8, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 m, u64 n) {
    u64 across = (n + 31) / 32;
    u64 flat = FLAT_GRP();
    u64 j = flat % across * 32 + LID(0);
    for (u32 r = LID(1); r < 32; r += 8) {
        u64 i = flat / across * 32 + r;
        if (i < m && j < n) {
            y[(j * n + i) % (m * n)] = x[i * n + j];
        }
    }
}
