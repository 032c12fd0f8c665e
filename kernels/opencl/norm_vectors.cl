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

/* y = (x - shift - centre) * rstd * scale + bias from i to stop, which i then is. */
#define NORMALISE(i, stop, shift, centre) \
    for (; i + LANES <= stop; i += LANES) { \
        VECTOR v = (LOAD_VECTOR(x, i) - shift - centre) * rstd * scale + bias; \
        if (lines) { \
            STORE_VECTOR_PAST(y, i, v); \
        } else { \
            STORE_VECTOR(y, i, v); \
        } \
    } \
    for (; i < stop; i++) { \
        ACC d = LOAD(x, i) - shift - centre; \
        STORE(y, i, d * rstd * scale + bias); \
    }

/* y = (x - mean) * rstd * gamma + beta over [a, channels, inner], `total` elements, with given statistics. */
KERNEL_WG(batchnorm_infer_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const T *RESTRICT gamma, GLOBAL const T *RESTRICT beta, GLOBAL const T *RESTRICT mean,
 GLOBAL const T *RESTRICT variance, GLOBAL T *RESTRICT y, u64 total, u64 channels, u64 inner, ACC epsilon, u32 past) {
    u64 i = FLAT_GRP() * ITEMS;
    u64 end = MIN(i + ITEMS, total);
    bool lines = past != 0 && inner % LANES == 0 && (u64)y % sizeof(VECTOR) == 0;
    while (i < end) {
        u64 block = i / inner;
        u64 channel = block % channels;
        u64 stop = MIN((block + 1) * inner, end);
        ACC rstd = (ACC)1 / sqrt(LOAD(variance, channel) + epsilon);
        ACC centre = LOAD(mean, channel);
        ACC scale = LOAD(gamma, channel);
        ACC bias = LOAD(beta, channel);
        NORMALISE(i, stop, (ACC)0, centre)
    }
}

/* sum = TERM of all distances from `shift + centre` in a segment of a channel: n elements from `begin` on, in pieces of
   images. While it works on one image it asks for the next, which is `channels` pieces away. */
#define SUM_OVER(sum, TERM) \
    s = (VECTOR)0; \
    t = (VECTOR)0; \
    for (u64 i = begin; i < begin + length;) { \
        u64 image = i / inner; \
        u64 run = MIN((image + 1) * inner, begin + length) - i; \
        u64 at = i + (image * (channels - 1) + channel) * inner; \
        for (u64 j = 0; j < run; j += LANES) { \
            PREFETCH(x + MIN(at + j + channels * inner, channels * n - 1)); \
            VECTOR d = LOAD_VECTOR(x, at + j) - shift - centre; \
            if (j / LANES % 2 == 0) { \
                s += TERM; \
            } else { \
                t += TERM; \
            } \
        } \
        i += run; \
    } \
    ACC sum = sum_of(s + t);

/* batchnorm with the channel's own statistics: a work-item takes a whole channel, and finds it in its cache when it
   normalises it. Segments and how they are joined are those of stats_part and stats_join; inner and segment are whole
   vectors. stats is [2, channels, parts]. */
KERNEL_WG(batchnorm_train_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const T *RESTRICT gamma, GLOBAL const T *RESTRICT beta, GLOBAL T *RESTRICT y,
 GLOBAL T *RESTRICT mean, GLOBAL T *RESTRICT variance, GLOBAL T *RESTRICT running_mean, GLOBAL T *RESTRICT running_variance,
 GLOBAL ACC *RESTRICT stats, u64 channels, u64 inner, u64 n, u64 segment, u64 parts, ACC epsilon, ACC keep, ACC take,
 u32 past) {
    u64 channel = FLAT_GRP();
    if (channel >= channels) return;
    bool lines = past != 0 && (u64)y % sizeof(VECTOR) == 0;
    ACC first = LOAD(x, channel * inner);
    ACC shift = first - first == (ACC)0 ? first : (ACC)0;
    VECTOR s;
    VECTOR t;
    ACC total = (ACC)0;
    for (u64 p = 0; p < parts; p++) {
        u64 begin = p * segment;
        u64 length = MIN(n - begin, segment);
        ACC centre = (ACC)0;
        SUM_OVER(distance, d)
        centre = distance / (ACC)length;
        SUM_OVER(squares, d * d)
        stats[channel * parts + p] = centre;
        stats[(channels + channel) * parts + p] = squares;
        total += distance;
    }
    ACC centre = total / (ACC)n;
    ACC squares = (ACC)0;
    for (u64 p = 0; p < parts; p++) {
        ACC d = stats[channel * parts + p] - centre;
        squares += stats[(channels + channel) * parts + p] + d * d * (ACC)MIN(n - p * segment, segment);
    }
    ACC var = squares / (ACC)n;
    ACC m = shift + centre;
    STORE(mean, channel, m);
    STORE(variance, channel, var);
    STORE(running_mean, channel, keep * LOAD(running_mean, channel) + take * m);
    STORE(running_variance, channel, keep * LOAD(running_variance, channel) + take * var);
    ACC rstd = (ACC)1 / sqrt(var + epsilon);
    ACC scale = LOAD(gamma, channel);
    ACC bias = LOAD(beta, channel);
    for (u64 image = 0; image < n / inner; image++) {
        u64 i = (image * channels + channel) * inner;
        u64 stop = i + inner;
        NORMALISE(i, stop, shift, centre)
    }
}
