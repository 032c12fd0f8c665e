/* Softmax and layernorm over rows that lie beside each other, for devices that are processors: a work-item per row, which it
   finds in its cache the second and third time, in vectors of LANES numbers. While it works on one row it asks for the next,
   for by then it no longer waits for memory. Where the result is larger than a cache (`past`) and rows are whole lines, it is
   stored past the caches, which would first read them. */

/* VECTOR v: the elements from `at` on, those from `end` on replaced by `other`. */
#define PIECE(v, p, at, end, other) \
    VECTOR v; \
    if ((at) + LANES <= (end)) { \
        v = LOAD_VECTOR(p, at); \
    } else { \
        VECTOR rest; \
        for (u32 l = 0; l < LANES; l++) { \
            ((ACC *)&rest)[l] = (at) + l < (end) ? LOAD(p, (at) + l) : (other); \
        } \
        v = rest; \
    }

/* Asks for two vectors that are needed a row later, or as far ahead as a core's cache can wait for. */
#define NEXT_ROW(p, at, n, total) \
    PREFETCH((p) + MIN((at) + MIN(n, 4096), (total) - 1)); \
    PREFETCH((p) + MIN((at) + MIN(n, 4096) + LANES, (total) - 1));

FUNCTION ACC sum_of(VECTOR v) {
    ACC s = (ACC)0;
    for (u32 l = 0; l < LANES; l++) {
        s += ((ACC *)&v)[l];
    }
    return s;
}

/* y = exp(x - top) / sum of the same. A NaN makes the sum NaN, and so its row; as does +infinity (inf - inf). */
KERNEL_WG(softmax_vectors, 1, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 rows, u64 n, u32 past) {
    u64 row = FLAT_GRP();
    if (row >= rows) return;
    u64 base = row * n;
    u64 end = base + n;
    bool lines = past != 0 && n % LANES == 0 && (u64)y % sizeof(VECTOR) == 0;
    ACC none = -(ACC)INFINITY;
    VECTOR tops = (VECTOR)LOAD(x, base);
    VECTOR others = tops;
    for (u64 at = base; at < end; at += 2 * LANES) {
        PIECE(v, x, at, end, none)
        PIECE(w, x, at + LANES, end, none)
        tops = v > tops ? v : tops;
        others = w > others ? w : others;
    }
    tops = others > tops ? others : tops;
    ACC top = LOAD(x, base);
    for (u32 l = 0; l < LANES; l++) {
        top = MAX(top, ((ACC *)&tops)[l]);
    }
    VECTOR s = (VECTOR)0;
    VECTOR t = (VECTOR)0;
    for (u64 at = base; at < end; at += 2 * LANES) {
        PIECE(v, x, at, end, none)
        PIECE(w, x, at + LANES, end, none)
        NEXT_ROW(x, at, n, rows * n)
        s += exp(v - top);
        t += exp(w - top);
    }
    ACC share = (ACC)1 / sum_of(s + t);
    for (u64 at = base; at < end; at += LANES) {
        PIECE(v, x, at, end, none)
        VECTOR e = exp(v - top) * share;
        if (lines) {
            STORE_VECTOR_PAST(y, at, e);
        } else if (at + LANES <= end) {
            STORE_VECTOR(y, at, e);
        } else {
            for (u32 l = 0; at + l < end; l++) {
                STORE(y, at + l, ((ACC *)&e)[l]);
            }
        }
    }
}

/* y = (x - mean) * rstd * gamma + beta over rows of n. All sums are of distances from the row's first element, so a large
   mean costs no digits; where that element is not finite, from 0. */
KERNEL_WG(layernorm_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const T *RESTRICT gamma, GLOBAL const T *RESTRICT beta, GLOBAL T *RESTRICT y,
 GLOBAL T *RESTRICT mean, GLOBAL T *RESTRICT rstd, u64 rows, u64 n, ACC epsilon, u32 past) {
    u64 row = FLAT_GRP();
    if (row >= rows) return;
    u64 base = row * n;
    u64 whole = n - n % (2 * LANES);
    bool lines = past != 0 && n % LANES == 0 && (u64)y % sizeof(VECTOR) == 0;
    ACC first = LOAD(x, base);
    ACC shift = first - first == (ACC)0 ? first : (ACC)0;
    VECTOR s = (VECTOR)0;
    VECTOR t = (VECTOR)0;
    for (u64 j = 0; j < whole; j += 2 * LANES) {
        s += LOAD_VECTOR(x, base + j) - shift;
        t += LOAD_VECTOR(x, base + j + LANES) - shift;
    }
    ACC sum = sum_of(s + t);
    for (u64 j = whole; j < n; j++) {
        sum += LOAD(x, base + j) - shift;
    }
    ACC m = sum / (ACC)n;
    s = (VECTOR)0;
    t = (VECTOR)0;
    for (u64 j = 0; j < whole; j += 2 * LANES) {
        VECTOR d = LOAD_VECTOR(x, base + j) - shift - m;
        VECTOR e = LOAD_VECTOR(x, base + j + LANES) - shift - m;
        NEXT_ROW(x, base + j, n, rows * n)
        s += d * d;
        t += e * e;
    }
    ACC squares = sum_of(s + t);
    for (u64 j = whole; j < n; j++) {
        ACC d = LOAD(x, base + j) - shift - m;
        squares += d * d;
    }
    ACC r = (ACC)1 / sqrt(squares / (ACC)n + epsilon);
    for (u64 j = 0; j + LANES <= n; j += LANES) {
        VECTOR d = LOAD_VECTOR(x, base + j) - shift - m;
        VECTOR v = d * r * LOAD_VECTOR(gamma, j) + LOAD_VECTOR(beta, j);
        if (lines) {
            STORE_VECTOR_PAST(y, base + j, v);
        } else {
            STORE_VECTOR(y, base + j, v);
        }
    }
    for (u64 j = n - n % LANES; j < n; j++) {
        ACC d = LOAD(x, base + j) - shift - m;
        STORE(y, base + j, d * r * LOAD(gamma, j) + LOAD(beta, j));
    }
    STORE(mean, row, shift + m);
    STORE(rstd, row, r);
}
