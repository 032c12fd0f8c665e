/* A bias per channel of [outer, c, inner] for devices that are processors: a work-item takes ITEMS elements one behind the
   other, in vectors of LANES numbers. Where the result is larger than a cache (`past`) and rows are whole lines, it is stored
   past the caches, which would first read it. */

/* y = x + b for n elements. Rows are of all channels where inner is 1, else of one. */
KERNEL_WG(bias_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT y, u64 n, u64 c, u64 inner, u32 past) {
    u64 i = FLAT_GRP() * ITEMS;
    u64 end = MIN(i + ITEMS, n);
    u64 length = inner == 1 ? c : inner;
    bool lines = past != 0 && length % LANES == 0 && (u64)y % sizeof(VECTOR) == 0;
    while (i < end) {
        u64 row = i / length;
        u64 first = row * length;
        u64 stop = MIN(first + length, end);
        ACC one = LOAD(b, inner == 1 ? 0 : row % c);
        for (; i + LANES <= stop; i += LANES) {
            PREFETCH(x + MIN(i + AHEAD, n - 1));
            VECTOR v = LOAD_VECTOR(x, i) + (inner == 1 ? LOAD_VECTOR(b, i - first) : (VECTOR)one);
            if (lines) {
                STORE_VECTOR_PAST(y, i, v);
            } else {
                STORE_VECTOR(y, i, v);
            }
        }
        for (; i < stop; i++) {
            STORE(y, i, LOAD(x, i) + (inner == 1 ? LOAD(b, i - first) : one));
        }
    }
}
