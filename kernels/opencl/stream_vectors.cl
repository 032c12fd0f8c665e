/* Copy and fill for devices that are processors, in vectors of 64 bytes: ITEMS elements per work-item, a multiple of 64.
   Where the result is larger than a cache (`past`), it is stored past the caches, which would first read its lines. */

/* y[i] = x[i] for i < n, bytes. */
KERNEL_WG(copy_vectors, 1, 1, 1)(GLOBAL const u8 *RESTRICT x, GLOBAL u8 *RESTRICT y, u64 n, u32 past) {
    u64 first = FLAT_GRP() * ITEMS;
    u64 end = MIN(first + ITEMS, n);
    bool lines = past != 0 && (u64)y % 64 == 0;
    u64 i = first;
    for (; i + 64 <= end && lines; i += 64) {
        STORE_PAST((GLOBAL uint16 *)&y[i], vload16(0, (GLOBAL const uint *)&x[i]));
    }
    for (; i + 64 <= end; i += 64) {
        vstore16(vload16(0, (GLOBAL const uint *)&x[i]), 0, (GLOBAL uint *)&y[i]);
    }
    for (; i < end; i++) {
        y[i] = x[i];
    }
}

/* Even words become `even`, odd ones `odd`: elements of 8 bytes have two words, shorter ones repeat within one. */
KERNEL_WG(fill_vectors, 1, 1, 1)(GLOBAL u32 *RESTRICT y, u64 words, u32 even, u32 odd, u32 past) {
    u64 first = FLAT_GRP() * ITEMS;
    u64 end = MIN(first + ITEMS, words);
    bool lines = past != 0 && (u64)y % 64 == 0;
    uint16 v = (uint16)(even, odd, even, odd, even, odd, even, odd, even, odd, even, odd, even, odd, even, odd);
    u64 i = first;
    for (; i + 16 <= end && lines; i += 16) {
        STORE_PAST((GLOBAL uint16 *)&y[i], v);
    }
    for (; i + 16 <= end; i += 16) {
        vstore16(v, 0, &y[i]);
    }
    for (; i < end; i++) {
        y[i] = i % 2 == 0 ? even : odd;
    }
}
