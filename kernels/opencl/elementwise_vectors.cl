/* Elementwise ops for devices that are processors, ITEMS elements per work-item. Where the result is larger than a cache
   (`past`), it is stored past the caches, which would first read its lines: a piece of it is computed in memory of the
   work-item's own, in a loop of which compilers make vectors, and goes out in whole lines. EXPR(x, b) is the op's expression, as
   in elementwise.c and activation.c. */

/* Elements in a line of 64 bytes, and in a piece. */
#define LINE (64 / sizeof(T))
#define PIECE (4 * LINE)

/* y[at] = value for each element `at` of the work-item that is below n; `loads` declare what the value is made of. */
#define EACH_ELEMENT(at, loads, value) \
    u64 first = FLAT_GRP() * ITEMS; \
    u64 end = MIN(first + ITEMS, n); \
    bool whole = past != 0 && (u64)y % 64 == 0; \
    union { \
        T numbers[PIECE]; \
        uint16 lines[PIECE / LINE]; \
    } piece; \
    u64 i = first; \
    for (; i + PIECE <= end && whole; i += PIECE) { \
        for (u32 l = 0; l < PIECE; l++) { \
            u64 at = i + l; \
            loads \
            piece.numbers[l] = (T)(value); \
        } \
        for (u32 l = 0; l < PIECE / LINE; l++) { \
            STORE_PAST((GLOBAL uint16 *)&y[i + l * LINE], piece.lines[l]); \
        } \
    } \
    for (; i < end; i++) { \
        u64 at = i; \
        loads \
        STORE(y, at, value); \
    }

/* y[i] = EXPR(x[i]) for i < n. */
KERNEL_WG(unary_vectors, 1, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n, u32 past) {
    EACH_ELEMENT(j, ACC v = LOAD(x, j);, EXPR(v, v))
}

/* y[i] = EXPR(a[i], b[i]) for i < n. */
KERNEL_WG(binary_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT y, u64 n, u32 past) {
    EACH_ELEMENT(j, ACC v = LOAD(a, j); ACC w = LOAD(b, j);, EXPR(v, w))
}

/* y[i] = EXPR(x[i], s) for i < n. */
KERNEL_WG(scalar_vectors, 1, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n, SCALAR s, u32 past) {
    EACH_ELEMENT(j, ACC v = LOAD(x, j); ACC w = (ACC)s;, EXPR(v, w))
}

/* y[i] = EXPR(s, x[i]) for i < n. */
KERNEL_WG(scalar_first_vectors, 1, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n, SCALAR s, u32 past) {
    EACH_ELEMENT(j, ACC v = (ACC)s; ACC w = LOAD(x, j);, EXPR(v, w))
}

/* y[i] = a[i] + alpha * b[i] for i < n. */
KERNEL_WG(triad_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b, GLOBAL T *RESTRICT y, u64 n, ACC alpha, u32 past) {
    EACH_ELEMENT(j, , LOAD(a, j) + alpha * LOAD(b, j))
}

/* Activations: y[i] = EXPR(x[i]) for i < n, with alpha in scope. */
KERNEL_WG(forward_vectors, 1, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n, ACC alpha, u32 past) {
    EACH_ELEMENT(j, ACC v = LOAD(x, j);, EXPR(v, v))
}

/* Their backward forms: y[i] = EXPR(x[i], g[i]) for i < n. */
KERNEL_WG(backward_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n, ACC alpha, u32 past) {
    EACH_ELEMENT(j, ACC v = LOAD(x, j); ACC w = LOAD(g, j);, EXPR(v, w))
}
