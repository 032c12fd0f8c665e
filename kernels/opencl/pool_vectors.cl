/* Pooling for devices that are processors. A work-item takes `each` rows of results and walks them in strips of VECTORS
   vectors of LANES numbers. Where channels are planes (ALONG), a strip is of windows beside each other, LANE = sw pixels
   apart, or a single one: at the border, and where sw is no number that LANE may be. Else it is of channels of one place.
   INDEX, CS, YS, XS as in conv.c, the rest of the window's names as in pool.c; every window holds at least one pixel. */

#define SIZES \
    u64 n_, u64 c_, u64 h_, u64 w_, u64 kh_, u64 kw_, u64 ho_, u64 wo_, u64 sh_, u64 sw_, u64 pt_, u64 pl_, u64 each
#define NARROW \
    INDEX c = (INDEX)c_, h = (INDEX)h_, w = (INDEX)w_, kh = (INDEX)kh_, kw = (INDEX)kw_, ho = (INDEX)ho_, wo = (INDEX)wo_, \
          sh = (INDEX)sh_, sw = (INDEX)sw_, pt = (INDEX)pt_, pl = (INDEX)pl_

/* First pixel and end of the window at position o of an axis. */
#define FIRST(o, stride, pad) ((o) * (stride) > (pad) ? (o) * (stride) - (pad) : 0)
#define LAST(o, stride, pad, k, size) MIN((o) * (stride) + (k) - (pad), size)
/* First position and end of those whose window holds pixel i of an axis. */
#define FROM(i, stride, pad, k) ((i) + (pad) >= (k) ? ((i) + (pad) - (k)) / (stride) + 1 : 0)
#define TO(i, stride, pad, count) (MIN(((i) + (pad)) / (stride), (count) - 1) + 1)

#define STRIP (VECTORS * LANES)
/* The statement for every vector q of a strip, of which `count` places belong to it: all LANES but in strips cut short. */
#define EACH_VECTOR(statement) \
    _Pragma("unroll") for (u32 q = 0; q < VECTORS; q++) { \
        u32 count = width == STRIP ? LANES : (u32)MIN(width - MIN(width, q * LANES), LANES); \
        statement \
    }
/* VECTOR v: `count` elements from `at` on that lie `step` apart; 0 behind them. */
#define TAKE(v, p, at, step) \
    VECTOR v; \
    if (count == LANES && (step) == 1) { \
        v = LOAD_VECTOR(p, at); \
    } else if (count == LANES && (step) == 2) { \
        v = (VECTOR)(LOAD_VECTOR(p, at).even, LOAD_VECTOR(p, (at) + LANES - 1).odd); \
    } else { \
        VECTOR some = (VECTOR)0; \
        for (u32 l = 0; l < count; l++) { \
            ((ACC *)&some)[l] = LOAD(p, (at) + l * (step)); \
        } \
        v = some; \
    }
/* Stores the first `count` numbers of v from `at` on. */
#define PUT(p, at, v) \
    if (count == LANES) { \
        STORE_VECTOR(p, at, v); \
    } else { \
        for (u32 l = 0; l < count; l++) { \
            STORE(p, (at) + l, ((ACC *)&v)[l]); \
        } \
    }

/* Whether the windows of a strip from position o on lie within the image. */
#define WITHIN(o) (ALONG && sw == LANE && (o) + STRIP <= wo && (o) * sw >= pl && ((o) + STRIP - 1) * sw + kw <= w + pl)
/* Whether STRIP * LANE pixels from i on lie in whole windows alone, the first of which is number LEFTMOST(i). */
#define LEFTMOST(i) (((i) + pl + LANE - kw) / LANE)
#define COVERED(i) \
    (ALONG && sw == LANE && (i) + STRIP * LANE <= w && (i) + pl + LANE >= kw && LEFTMOST(i) * LANE >= pl && \
     ((i) + STRIP * LANE - 1 + pl) / LANE < wo && ((i) + STRIP * LANE - 1 + pl) / LANE * LANE + kw <= w + pl)
/* The first and the last place in a row of `size` where a strip of `length` may begin: these are neighbours. None: `size`. */
#define BOUNDS(size, length, fits) \
    INDEX low = 0; \
    while (low < size && !fits(low)) { \
        low++; \
    } \
    INDEX high = low < size ? size - (length) : low; \
    while (low < size && !fits(high)) { \
        high--; \
    }
/* Where the strip behind that at o begins; the last one overlaps that before it. */
#define NEXT(o, length) \
    ((o) < low || (o) > high ? (o) + 1 : (o) < high ? MIN((o) + (length), high) : (o) + (length))

/* y and the place of y in its plane: the first maximum, or the first NaN. */
KERNEL_WG(maxpool2d_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, GLOBAL i32 *RESTRICT places, SIZES) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * ho_;
    BOUNDS(wo, STRIP, WITHIN)
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX oy = (INDEX)(r % ho_);
        INDEX plane = (INDEX)(r / ho_) * (h * w * XS(c));
        INDEX out = (INDEX)r * (wo * XS(c));
        INDEX above = FIRST(oy, sh, pt);
        INDEX below = LAST(oy, sh, pt, kh, h);
        for (INDEX ox = 0; ox < wo; ox = NEXT(ox, STRIP)) {
            INDEX left = FIRST(ox, sw, pl);
            INDEX right = LAST(ox, sw, pl, kw, w);
            INDEX beside = ALONG ? (ox >= low && ox <= high ? STRIP : 1) : c;
            for (INDEX first = 0; first < beside; first += STRIP) {
                u32 width = (u32)MIN(beside - first, STRIP);
                VECTOR top[VECTORS];
                PLACES best[VECTORS];
                u64 from = plane + (above * w + left) * XS(c) + first;
                EACH_VECTOR(TAKE(v, x, from + q * LANES * LANE, LANE) top[q] = v; best[q] = (PLACES)(above * w + left);)
                for (INDEX row = above; row < below; row++) {
                    for (INDEX column = left; column < right; column++) {
                        INDEX place = row * w + column;
                        u64 at = plane + place * XS(c) + first;
                        EACH_VECTOR(TAKE(v, x, at + q * LANES * LANE, LANE)
                                    PLACES better = v > top[q] || (v != v && top[q] == top[q]);
                                    top[q] = better ? v : top[q]; best[q] = better ? (PLACES)place : best[q];)
                    }
                }
                u64 to = out + ox * XS(c) + first;
                EACH_VECTOR(PUT(y, to + q * LANES, top[q])
                            PLACES own = best[q] + (ALONG ? ((PLACES)(q * LANES) + NUMBERS) * LANE : (PLACES)0);
                            if (count == LANES) { STORE_PLACES(places, to + q * LANES, own); } else {
                                for (u32 l = 0; l < count; l++) {
                                    places[to + q * LANES + l] = (i32)((PLACE *)&own)[l];
                                }
                            })
            }
        }
    }
}

/* y: the mean over the window; with include = 1 the padding counts as zeros. */
KERNEL_WG(avgpool2d_vectors, 1, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, SIZES, u64 include) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * ho_;
    BOUNDS(wo, STRIP, WITHIN)
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX oy = (INDEX)(r % ho_);
        INDEX plane = (INDEX)(r / ho_) * (h * w * XS(c));
        INDEX out = (INDEX)r * (wo * XS(c));
        INDEX above = FIRST(oy, sh, pt);
        INDEX below = LAST(oy, sh, pt, kh, h);
        for (INDEX ox = 0; ox < wo; ox = NEXT(ox, STRIP)) {
            INDEX left = FIRST(ox, sw, pl);
            INDEX right = LAST(ox, sw, pl, kw, w);
            ACC pixels = (ACC)(include ? kh * kw : (below - above) * (right - left));
            INDEX beside = ALONG ? (ox >= low && ox <= high ? STRIP : 1) : c;
            for (INDEX first = 0; first < beside; first += STRIP) {
                u32 width = (u32)MIN(beside - first, STRIP);
                VECTOR s[VECTORS];
                EACH_VECTOR(s[q] = (VECTOR)0;)
                for (INDEX row = above; row < below; row++) {
                    for (INDEX column = left; column < right; column++) {
                        u64 at = plane + (row * w + column) * XS(c) + first;
                        EACH_VECTOR(TAKE(v, x, at + q * LANES * LANE, LANE) s[q] += v;)
                    }
                }
                u64 to = out + ox * XS(c) + first;
                EACH_VECTOR(VECTOR mean = s[q] / pixels; PUT(y, to + q * LANES, mean))
            }
        }
    }
}

/* Stores s[LANE][VECTORS] of a strip that is covered: every LANE-th pixel belongs to the same vector. */
#define PUT_COVERED \
    EACH_VECTOR(u64 at = to + q * LANES * LANE; if (LANE == 1) { STORE_VECTOR(dx, at, s[0][q]); } else if (LANE == 2) { \
        VECTOR one; one.even = s[0][q].lo; one.odd = s[LANE - 1][q].lo; STORE_VECTOR(dx, at, one); \
        one.even = s[0][q].hi; one.odd = s[LANE - 1][q].hi; STORE_VECTOR(dx, at + LANES, one); \
    } else { \
        for (u32 l = 0; l < LANES * LANE; l++) { \
            STORE(dx, at + l, ((ACC *)&s[l % LANE][q])[l / LANE]); \
        } \
    })

/* dx: every pixel collects g from the windows that hold it and name it. */
KERNEL_WG(maxpool2d_bwd_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL const i32 *RESTRICT places, GLOBAL T *RESTRICT dx, SIZES) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * h_;
    BOUNDS(w, STRIP * LANE, COVERED)
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX row = (INDEX)(r % h_);
        INDEX plane = (INDEX)(r / h_) * (ho * wo * XS(c));
        INDEX out = (INDEX)r * (w * XS(c));
        INDEX above = FROM(row, sh, pt, kh);
        INDEX below = TO(row, sh, pt, ho);
        for (INDEX begin = 0; begin < w; begin = NEXT(begin, STRIP * LANE)) {
            bool covered = begin >= low && begin <= high;
            INDEX beside = ALONG ? (covered ? STRIP : 1) : c;
            for (INDEX first = 0; first < beside; first += STRIP) {
                u32 width = (u32)MIN(beside - first, STRIP);
                VECTOR s[LANE][VECTORS];
#pragma unroll
                for (u32 p = 0; p < LANE; p++) {
                    EACH_VECTOR(s[p][q] = (VECTOR)0;)
                    INDEX column = begin + p;
                    INDEX left = covered ? LEFTMOST(column) : FROM(column, sw, pl, kw);
                    INDEX right = covered ? TO(column, LANE, pl, wo) : TO(column, sw, pl, wo);
                    for (INDEX oy = above; oy < below && (p == 0 || covered); oy++) {
                        for (INDEX ox = left; ox < right; ox++) {
                            u64 at = plane + (oy * wo + ox) * XS(c) + first;
                            EACH_VECTOR(PLACES own = (PLACES)(row * w + column);
                                        if (ALONG) { own += ((PLACES)(q * LANES) + NUMBERS) * LANE; }
                                        PLACES named = (PLACES)0;
                                        if (count == LANES) { named = LOAD_PLACES(places, at + q * LANES); } else {
                                            for (u32 l = 0; l < count; l++) {
                                                ((PLACE *)&named)[l] = places[at + q * LANES + l];
                                            }
                                        }
                                        TAKE(v, g, at + q * LANES, 1) s[p][q] += named == own ? v : (VECTOR)0;)
                        }
                    }
                }
                u64 to = out + begin * XS(c) + first;
                if (covered) {
                    PUT_COVERED
                } else {
                    EACH_VECTOR(PUT(dx, to + q * LANES, s[0][q]))
                }
            }
        }
    }
}

/* dx: every pixel collects its share of g from the windows that hold it. */
KERNEL_WG(avgpool2d_bwd_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL T *RESTRICT dx, SIZES, u64 include) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * h_;
    BOUNDS(w, STRIP * LANE, COVERED)
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX row = (INDEX)(r % h_);
        INDEX plane = (INDEX)(r / h_) * (ho * wo * XS(c));
        INDEX out = (INDEX)r * (w * XS(c));
        INDEX above = FROM(row, sh, pt, kh);
        INDEX below = TO(row, sh, pt, ho);
        for (INDEX begin = 0; begin < w; begin = NEXT(begin, STRIP * LANE)) {
            bool covered = begin >= low && begin <= high;
            INDEX beside = ALONG ? (covered ? STRIP : 1) : c;
            for (INDEX first = 0; first < beside; first += STRIP) {
                u32 width = (u32)MIN(beside - first, STRIP);
                VECTOR s[LANE][VECTORS];
#pragma unroll
                for (u32 p = 0; p < LANE; p++) {
                    EACH_VECTOR(s[p][q] = (VECTOR)0;)
                    INDEX column = begin + p;
                    INDEX left = covered ? LEFTMOST(column) : FROM(column, sw, pl, kw);
                    INDEX right = covered ? TO(column, LANE, pl, wo) : TO(column, sw, pl, wo);
                    for (INDEX oy = above; oy < below && (p == 0 || covered); oy++) {
                        INDEX tall = LAST(oy, sh, pt, kh, h) - FIRST(oy, sh, pt);
                        for (INDEX ox = left; ox < right; ox++) {
                            INDEX broad = covered ? kw : LAST(ox, sw, pl, kw, w) - FIRST(ox, sw, pl);
                            ACC share = (ACC)1 / (ACC)(include ? kh * kw : tall * broad);
                            u64 at = plane + (oy * wo + ox) * XS(c) + first;
                            EACH_VECTOR(TAKE(v, g, at + q * LANES, 1) s[p][q] += v * share;)
                        }
                    }
                }
                u64 to = out + begin * XS(c) + first;
                if (covered) {
                    PUT_COVERED
                } else {
                    EACH_VECTOR(PUT(dx, to + q * LANES, s[0][q]))
                }
            }
        }
    }
}
