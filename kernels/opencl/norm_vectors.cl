/* Softmax and layernorm over rows that lie beside each other, for devices that are processors: a work-item per row, which it
   finds in its cache the second and third time, in vectors of LANES numbers. While it works on one row it asks for the next,
   for by then it no longer waits for memory. Where the result is larger than a cache (`past`) and rows are whole lines, it is
   stored past the caches, which would first read them. */

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

/* exp(v) of numbers between LEAST and 0: 2^k times POLYNOMIAL, its lowest term first, of what is left, which is at most half
   of the logarithm of 2, LN2_HIGH + LN2_LOW. Beside ROUNDER a sum's last bits are k; EXPONENT is where a number's begins. */
FUNCTION VECTOR exp_tame(VECTOR v) {
    const ACC terms[] = POLYNOMIAL;
    VECTOR t = v * LOG2_E + ROUNDER;
    VECTOR k = t - ROUNDER;
    VECTOR r = v - k * LN2_HIGH - k * LN2_LOW;
    VECTOR p = (VECTOR)terms[DEGREE];
#pragma unroll
    for (u32 i = DEGREE; i > 0; i--) {
        p = p * r + terms[i - 1];
    }
    VECTOR one = (VECTOR)1;
    PLACES power = *(PLACES *)&one + (*(PLACES *)&t << EXPONENT);
    return p * *(VECTOR *)&power;
}

FUNCTION VECTOR exp_of(VECTOR v, bool tame) {
    if (tame) {
        return exp_tame(v);
    }
    return exp(v);
}

/* VECTOR v: the elements of a row from j on; behind its last one `other`. */
#define PIECE(v, j, other) \
    VECTOR v = (VECTOR)(other); \
    if ((j) + LANES <= n) { \
        v = LOAD_VECTOR(x, base + (j)); \
    } else { \
        for (u32 l = 0; (j) + l < n; l++) { \
            ((ACC *)&v)[l] = LOAD(x, base + (j) + l); \
        } \
    }

/* y = exp(x - top) / sum of the same. A NaN makes the sum NaN, and so its row; as does +infinity (inf - inf). A work-item takes
   `each` rows. The exponentials of a row of at most ROW elements are kept until their sum is known. */
KERNEL_WG(softmax_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 rows, u64 n, u64 each, u32 past) {
    VECTOR kept[ROW / LANES];
    bool lines = past != 0 && n % LANES == 0 && (u64)y % sizeof(VECTOR) == 0;
    bool keep = n <= ROW;
    u64 whole = n - n % (2 * LANES);
    u64 stop = MIN(FLAT_GRP() * each + each, rows);
    for (u64 row = FLAT_GRP() * each; row < stop; row++) {
        u64 base = row * n;
        ACC top = LOAD(x, base);
        ACC low = top;
        VECTOR tops = (VECTOR)top;
        VECTOR lows = (VECTOR)top;
        for (u64 j = 0; j < whole; j += 2 * LANES) {
            VECTOR v = LOAD_VECTOR(x, base + j);
            VECTOR w = LOAD_VECTOR(x, base + j + LANES);
            VECTOR more = v > w ? v : w;
            VECTOR less = v < w ? v : w;
            tops = more > tops ? more : tops;
            lows = less < lows ? less : lows;
        }
        for (u64 j = whole; j < n; j += LANES) {
            PIECE(v, j, top)
            tops = v > tops ? v : tops;
            lows = v < lows ? v : lows;
        }
        for (u32 l = 0; l < LANES; l++) {
            top = MAX(top, ((ACC *)&tops)[l]);
            low = MIN(low, ((ACC *)&lows)[l]);
        }
        bool tame = low - top > LEAST;
        VECTOR s = (VECTOR)0;
        VECTOR t = (VECTOR)0;
        for (u64 j = 0; j < whole; j += 2 * LANES) {
            NEXT_ROW(x, base + j, n, rows * n)
            VECTOR e = exp_of(LOAD_VECTOR(x, base + j) - top, tame);
            VECTOR f = exp_of(LOAD_VECTOR(x, base + j + LANES) - top, tame);
            if (keep) {
                kept[j / LANES] = e;
                kept[j / LANES + 1] = f;
            }
            s += e;
            t += f;
        }
        for (u64 j = whole; j < n; j += LANES) {
            PIECE(v, j, top)
            VECTOR e = exp_of(v - top, tame);
            for (u64 l = n - j; l < LANES; l++) {
                ((ACC *)&e)[l] = (ACC)0;
            }
            if (keep) {
                kept[j / LANES] = e;
            }
            s += e;
        }
        ACC share = (ACC)1 / sum_of(s + t);
        for (u64 j = 0; j + LANES <= n; j += LANES) {
            VECTOR e = (keep ? kept[j / LANES] : exp_of(LOAD_VECTOR(x, base + j) - top, tame)) * share;
            if (lines) {
                STORE_VECTOR_PAST(y, base + j, e);
            } else {
                STORE_VECTOR(y, base + j, e);
            }
        }
        u64 rest = n - n % LANES;
        if (rest < n) {
            PIECE(v, rest, top)
            VECTOR e = keep ? kept[rest / LANES] : exp_of(v - top, tame);
            for (u32 l = 0; rest + l < n; l++) {
                STORE(y, base + rest + l, ((ACC *)&e)[l] * share);
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

/* The same in memory's order, for what is larger than the caches, in three launches. Parts are pieces of one image's channel:
   `segment` elements, whole vectors, `per` of them in a run of inner = per * segment. */

/* Mean distance and squares of every part; a work-item takes `each` of them. stats is [2, channels, parts], parts = n / segment. */
KERNEL_WG(batch_stats, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL ACC *RESTRICT stats, u64 channels, u64 inner, u64 n, u64 segment, u64 each) {
    u64 parts = n / segment;
    u64 per = inner / segment;
    ACC vectors = (ACC)(segment / LANES);
    u64 stop = MIN(FLAT_GRP() * each + each, channels * parts);
    for (u64 piece = FLAT_GRP() * each; piece < stop; piece++) {
        u64 channel = piece / per % channels;
        u64 part = piece / (per * channels) * per + piece % per;
        u64 at = piece * segment;
        ACC first = LOAD(x, channel * inner);
        ACC shift = first - first == (ACC)0 ? first : (ACC)0;
        VECTOR s = (VECTOR)0;
        VECTOR t = (VECTOR)0;
        for (u64 j = 0; j < segment; j += 2 * LANES) {
            PREFETCH(x + MIN(at + j + AHEAD, channels * n - 1));
            PREFETCH(x + MIN(at + j + LANES + AHEAD, channels * n - 1));
            s += LOAD_VECTOR(x, at + j) - shift;
            if (j + LANES < segment) {
                t += LOAD_VECTOR(x, at + j + LANES) - shift;
            }
        }
        s += t;
        VECTOR m = s / vectors;
        VECTOR squares = (VECTOR)0;
        t = (VECTOR)0;
        for (u64 j = 0; j < segment; j += 2 * LANES) {
            VECTOR d = LOAD_VECTOR(x, at + j) - shift - m;
            squares += d * d;
            if (j + LANES < segment) {
                VECTOR e = LOAD_VECTOR(x, at + j + LANES) - shift - m;
                t += e * e;
            }
        }
        /* The lanes' means and squares joined as those of parts. */
        ACC mean = sum_of(s) / (ACC)segment;
        m -= mean;
        stats[channel * parts + part] = mean;
        stats[(channels + channel) * parts + part] = sum_of(squares + t + m * m * vectors);
    }
}

/* A work-item per channel joins its parts, which are of one size: mean distance and rstd to moments[2, channels]. */
KERNEL_WG(batch_join, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const ACC *RESTRICT stats, GLOBAL ACC *RESTRICT moments, GLOBAL T *RESTRICT mean,
 GLOBAL T *RESTRICT variance, GLOBAL T *RESTRICT running_mean, GLOBAL T *RESTRICT running_variance, u64 channels, u64 inner,
 u64 n, u64 segment, ACC epsilon, ACC keep, ACC take) {
    u64 channel = FLAT_GRP();
    if (channel >= channels) return;
    u64 parts = n / segment;
    GLOBAL const ACC *means = stats + channel * parts;
    GLOBAL const ACC *squares = stats + (channels + channel) * parts;
    VECTOR s = (VECTOR)0;
    for (u64 p = 0; p < parts; p += LANES) {
        EACH(l, MIN(parts - p, LANES), LANES, ((ACC *)&s)[l] += means[p + l];)
    }
    ACC centre = sum_of(s) / (ACC)parts;
    s = (VECTOR)0;
    for (u64 p = 0; p < parts; p += LANES) {
        EACH(l, MIN(parts - p, LANES), LANES, ACC d = means[p + l] - centre;
             ((ACC *)&s)[l] += squares[p + l] + d * d * (ACC)segment;)
    }
    ACC first = LOAD(x, channel * inner);
    ACC var = sum_of(s) / (ACC)n;
    ACC m = (first - first == (ACC)0 ? first : (ACC)0) + centre;
    moments[channel] = centre;
    moments[channels + channel] = (ACC)1 / sqrt(var + epsilon);
    STORE(mean, channel, m);
    STORE(variance, channel, var);
    STORE(running_mean, channel, keep * LOAD(running_mean, channel) + take * m);
    STORE(running_variance, channel, keep * LOAD(running_variance, channel) + take * var);
}

/* y from the moments. */
KERNEL_WG(batch_apply, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const ACC *RESTRICT moments, GLOBAL const T *RESTRICT gamma,
 GLOBAL const T *RESTRICT beta, GLOBAL T *RESTRICT y, u64 total, u64 channels, u64 inner, u32 past) {
    u64 i = FLAT_GRP() * ITEMS;
    u64 end = MIN(i + ITEMS, total);
    bool lines = past != 0 && (u64)y % sizeof(VECTOR) == 0;
    while (i < end) {
        u64 channel = i / inner % channels;
        u64 stop = MIN((i / inner + 1) * inner, end);
        ACC first = LOAD(x, channel * inner);
        ACC shift = first - first == (ACC)0 ? first : (ACC)0;
        ACC centre = moments[channel];
        ACC rstd = moments[channels + channel];
        ACC scale = LOAD(gamma, channel);
        ACC bias = LOAD(beta, channel);
        NORMALISE(i, stop, shift, centre)
    }
}

/* The same for rows of at most ROW elements, few beside a vector's: a lane per row, `each` times LANES rows per work-item. */
KERNEL_WG(softmax_lanes, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 rows, u64 n, u64 each) {
    VECTOR kept[ROW];
    u64 stop = MIN((FLAT_GRP() + 1) * each * LANES, rows);
    for (u64 row = FLAT_GRP() * each * LANES; row < stop; row += LANES) {
        u64 last = MIN(rows - row, LANES) - 1;
        VECTOR top = (VECTOR)(-(ACC)INFINITY);
        VECTOR low = (VECTOR)((ACC)INFINITY);
        for (u64 j = 0; j < n; j++) {
            VECTOR v;
            for (u64 l = 0; l < LANES; l++) {
                ((ACC *)&v)[l] = LOAD(x, (row + MIN(l, last)) * n + j);
            }
            kept[j] = v;
            top = v > top ? v : top;
            low = v < low ? v : low;
        }
        VECTOR span = low - top;
        ACC widest = (ACC)0;
        for (u32 l = 0; l < LANES; l++) {
            widest = MIN(((ACC *)&span)[l], widest);
        }
        VECTOR s = (VECTOR)0;
        for (u64 j = 0; j < n; j++) {
            kept[j] = exp_of(kept[j] - top, widest > LEAST);
            s += kept[j];
        }
        VECTOR share = (VECTOR)1 / s;
        for (u64 j = 0; j < n; j++) {
            VECTOR e = kept[j] * share;
            for (u64 l = 0; l <= last; l++) {
                STORE(y, (row + l) * n + j, ((ACC *)&e)[l]);
            }
        }
    }
}
