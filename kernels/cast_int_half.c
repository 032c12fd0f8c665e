/* Integers to f16 and bf16, rounded once. A detour over f32 would round twice; here the magnitude is cut to at most 24
   bits, of which the last one keeps a trace of what was lost, so that the only rounding is the store's. */
KERNEL_WG(convert, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL OUT *RESTRICT y, u64 n) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            T v = x[i];
            u64 m = v < (T)0 ? (u64)0 - (u64)v : (u64)v;
            f32 scale = v < (T)0 ? -1.0f : 1.0f;
            while (m >> 24 != 0) {
                m = (m >> 8) | (u64)((m & 255) != 0);
                scale *= 256.0f;
            }
            STORE_OUT(y, i, (f32)(u32)m * scale);
        }
    }
}
