/* Pooling for devices that are processors. A work-item takes `each` rows of results and walks them in strips of VECTORS
   vectors of LANES numbers; what is left beside them is taken one by one. Where channels are planes (ALONG), a strip is of
   windows beside each other, LANE = sw pixels apart, that lie within the image, and begins at positions from low to high,
   which are neighbours. Else it is of channels of one place.
   INDEX, CS, YS, XS as in conv.c, the rest of the window's names as in pool.c; every window holds at least one pixel. */

#define SIZES \
    u64 n_, u64 c_, u64 h_, u64 w_, u64 kh_, u64 kw_, u64 ho_, u64 wo_, u64 sh_, u64 sw_, u64 pt_, u64 pl_, u64 each, \
        u64 low_, u64 high_
#define NARROW \
    INDEX c = (INDEX)c_, h = (INDEX)h_, w = (INDEX)w_, kh = (INDEX)kh_, kw = (INDEX)kw_, ho = (INDEX)ho_, wo = (INDEX)wo_, \
          sh = (INDEX)sh_, sw = (INDEX)sw_, pt = (INDEX)pt_, pl = (INDEX)pl_, low = (INDEX)low_, \
          high = (INDEX)high_

/* First pixel and end of the window at position o of an axis. */
#define FIRST(o, stride, pad) ((o) * (stride) > (pad) ? (o) * (stride) - (pad) : 0)
#define LAST(o, stride, pad, k, size) MIN((o) * (stride) + (k) - (pad), size)
/* First position and end of those whose window holds pixel i of an axis. */
#define FROM(i, stride, pad, k) ((i) + (pad) >= (k) ? ((i) + (pad) - (k)) / (stride) + 1 : 0)
#define TO(i, stride, pad, count) (MIN(((i) + (pad)) / (stride), (count) - 1) + 1)

#define STRIP (VECTORS * LANES)
#define EACH_VECTOR _Pragma("unroll") for (u32 q = 0; q < VECTORS; q++)
/* VECTOR v: the elements from `at` on that lie LANE apart. */
#define TAKE(v, p, at) \
    VECTOR v; \
    if (LANE == 1) { \
        v = LOAD_VECTOR(p, at); \
    } else if (LANE == 2) { \
        v = (VECTOR)(LOAD_VECTOR(p, at).even, LOAD_VECTOR(p, (at) + LANES - 1).odd); \
    } else { \
        for (u32 l = 0; l < LANES; l++) { \
            ((ACC *)&v)[l] = LOAD(p, (at) + l * LANE); \
        } \
    }

/* The first window that holds pixel i, if whole windows do. */
#define LEFTMOST(i) (((i) + pl + LANE - kw) / LANE)
/* Whether a strip begins at o; how many results are taken there. */
#define BEGINS(o) ((o) >= low && (o) <= high)
#define BESIDE(o) (!ALONG ? c : BEGINS(o) ? STRIP : 1)
/* Where the strip behind that at o begins; the last one overlaps that before it. */
#define NEXT(o, length) (!BEGINS(o) ? (o) + 1 : (o) < high ? MIN((o) + (length), high) : (o) + (length))

/* y and the place of y in its plane: the first maximum, or the first NaN. */
KERNEL_WG(maxpool2d_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, GLOBAL i32 *RESTRICT places, SIZES) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * ho_;
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX oy = (INDEX)(r % ho_);
        INDEX plane = (INDEX)(r / ho_) * (h * w * XS(c));
        INDEX out = (INDEX)r * (wo * XS(c));
        INDEX above = FIRST(oy, sh, pt);
        INDEX below = LAST(oy, sh, pt, kh, h);
        for (INDEX ox = 0; ox < wo; ox = NEXT(ox, STRIP)) {
            INDEX left = FIRST(ox, sw, pl);
            INDEX right = LAST(ox, sw, pl, kw, w);
            INDEX first = 0;
            for (; first + STRIP <= BESIDE(ox); first += STRIP) {
                VECTOR top[VECTORS];
                PLACES best[VECTORS];
                u64 from = plane + (above * w + left) * XS(c) + first;
                EACH_VECTOR {
                    TAKE(v, x, from + q * LANES * LANE)
                    top[q] = v;
                    best[q] = (PLACES)(above * w + left);
                }
                for (INDEX row = above; row < below; row++) {
                    for (INDEX column = left; column < right; column++) {
                        INDEX place = row * w + column;
                        u64 at = plane + place * XS(c) + first;
                        EACH_VECTOR {
                            TAKE(v, x, at + q * LANES * LANE)
                            PLACES better = !(v <= top[q]) && top[q] == top[q];
                            top[q] = better ? v : top[q];
                            best[q] = better ? (PLACES)place : best[q];
                        }
                    }
                }
                u64 to = out + ox * XS(c) + first;
                EACH_VECTOR {
                    PLACES own = best[q] + (ALONG ? ((PLACES)(q * LANES) + NUMBERS) * LANE : (PLACES)0);
                    STORE_VECTOR(y, to + q * LANES, top[q]);
                    STORE_PLACES(places, to + q * LANES, own);
                }
            }
            for (; first < BESIDE(ox); first++) {
                INDEX best = above * w + left;
                ACC top = LOAD(x, plane + best * XS(c) + first);
                for (INDEX row = above; row < below; row++) {
                    for (INDEX column = left; column < right; column++) {
                        ACC v = LOAD(x, plane + (row * w + column) * XS(c) + first);
                        if (v > top || (IS_NAN(v) && !IS_NAN(top))) {
                            top = v;
                            best = row * w + column;
                        }
                    }
                }
                y[out + ox * XS(c) + first] = x[plane + best * XS(c) + first];
                places[out + ox * XS(c) + first] = (i32)best;
            }
        }
    }
}

/* y: the mean over the window; with include = 1 the padding counts as zeros. */
KERNEL_WG(avgpool2d_vectors, 1, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, SIZES, u64 include) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * ho_;
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
            INDEX first = 0;
            for (; first + STRIP <= BESIDE(ox); first += STRIP) {
                VECTOR s[VECTORS];
                u64 from = plane + (above * w + left) * XS(c) + first;
                EACH_VECTOR s[q] = (VECTOR)0;
                for (INDEX row = above; row < below; row++) {
                    for (INDEX column = left; column < right; column++) {
                        u64 at = plane + (row * w + column) * XS(c) + first;
                        EACH_VECTOR {
                            TAKE(v, x, at + q * LANES * LANE)
                            s[q] += v;
                        }
                    }
                }
                u64 to = out + ox * XS(c) + first;
                EACH_VECTOR STORE_VECTOR(y, to + q * LANES, s[q] / pixels);
            }
            for (; first < BESIDE(ox); first++) {
                ACC s = (ACC)0;
                for (INDEX row = above; row < below; row++) {
                    for (INDEX column = left; column < right; column++) {
                        s += LOAD(x, plane + (row * w + column) * XS(c) + first);
                    }
                }
                STORE(y, out + ox * XS(c) + first, s / pixels);
            }
        }
    }
}

/* Stores vector q of s from `at` on, where every LANE-th pixel belongs to the same one. */
#define PUT(at) \
    if (LANE == 1) { \
        STORE_VECTOR(dx, at, s[0][q]); \
    } else if (LANE == 2) { \
        VECTOR one; \
        one.even = s[0][q].lo; \
        one.odd = s[LANE - 1][q].lo; \
        STORE_VECTOR(dx, at, one); \
        one.even = s[0][q].hi; \
        one.odd = s[LANE - 1][q].hi; \
        STORE_VECTOR(dx, (at) + LANES, one); \
    } else { \
        for (u32 l = 0; l < LANES * LANE; l++) { \
            STORE(dx, (at) + l, ((ACC *)&s[l % LANE][q])[l / LANE]); \
        } \
    }

/* dx: every pixel collects g from the windows that hold it and name it. */
KERNEL_WG(maxpool2d_bwd_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL const i32 *RESTRICT places, GLOBAL T *RESTRICT dx, SIZES) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * h_;
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX row = (INDEX)(r % h_);
        INDEX plane = (INDEX)(r / h_) * (ho * wo * XS(c));
        INDEX out = (INDEX)r * (w * XS(c));
        INDEX above = FROM(row, sh, pt, kh);
        INDEX below = TO(row, sh, pt, ho);
        for (INDEX begin = 0; begin < w; begin = NEXT(begin, STRIP * LANE)) {
            INDEX from = FROM(begin, sw, pl, kw);
            INDEX end = TO(begin, sw, pl, wo);
            INDEX first = 0;
            for (; first + STRIP <= BESIDE(begin); first += STRIP) {
                VECTOR s[LANE][VECTORS];
#pragma unroll
                for (u32 p = 0; p < LANE; p++) {
                    INDEX column = begin + p;
                    INDEX left = ALONG ? LEFTMOST(column) : from;
                    INDEX right = ALONG ? TO(column, LANE, pl, wo) : end;
                    EACH_VECTOR s[p][q] = (VECTOR)0;
                    for (INDEX oy = above; oy < below; oy++) {
                        for (INDEX ox = left; ox < right; ox++) {
                            u64 at = plane + (oy * wo + ox) * XS(c) + first;
                            EACH_VECTOR {
                                PLACES own = (PLACES)(row * w + column);
                                own += ALONG ? ((PLACES)(q * LANES) + NUMBERS) * LANE : (PLACES)0;
                                PLACES named = LOAD_PLACES(places, at + q * LANES);
                                s[p][q] += named == own ? LOAD_VECTOR(g, at + q * LANES) : (VECTOR)0;
                            }
                        }
                    }
                }
                u64 to = out + begin * XS(c) + first;
                EACH_VECTOR {
                    PUT(to + q * LANES * LANE)
                }
            }
            for (; first < BESIDE(begin); first++) {
                ACC s = (ACC)0;
                for (INDEX oy = above; oy < below; oy++) {
                    for (INDEX ox = from; ox < end; ox++) {
                        u64 at = plane + (oy * wo + ox) * XS(c) + first;
                        s += places[at] == (i32)(row * w + begin) ? LOAD(g, at) : (ACC)0;
                    }
                }
                STORE(dx, out + begin * XS(c) + first, s);
            }
        }
    }
}

/* Pixels of the window at position o of an axis. */
#define PIXELS(o, stride, pad, k, size) (LAST(o, stride, pad, k, size) - FIRST(o, stride, pad))

/* dx: every pixel collects its share of g from the windows that hold it. */
KERNEL_WG(avgpool2d_bwd_vectors, 1, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL T *RESTRICT dx, SIZES, u64 include) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * h_;
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX row = (INDEX)(r % h_);
        INDEX plane = (INDEX)(r / h_) * (ho * wo * XS(c));
        INDEX out = (INDEX)r * (w * XS(c));
        INDEX above = FROM(row, sh, pt, kh);
        INDEX below = TO(row, sh, pt, ho);
        for (INDEX begin = 0; begin < w; begin = NEXT(begin, STRIP * LANE)) {
            INDEX from = FROM(begin, sw, pl, kw);
            INDEX end = TO(begin, sw, pl, wo);
            INDEX first = 0;
            for (; first + STRIP <= BESIDE(begin); first += STRIP) {
                VECTOR s[LANE][VECTORS];
#pragma unroll
                for (u32 p = 0; p < LANE; p++) {
                    INDEX column = begin + p;
                    INDEX left = ALONG ? LEFTMOST(column) : from;
                    INDEX right = ALONG ? TO(column, LANE, pl, wo) : end;
                    EACH_VECTOR s[p][q] = (VECTOR)0;
                    for (INDEX oy = above; oy < below; oy++) {
                        INDEX tall = PIXELS(oy, sh, pt, kh, h);
                        ACC whole = (ACC)1 / (ACC)(include ? kh * kw : tall * kw);
                        for (INDEX ox = left; ox < right; ox++) {
                            ACC share = ALONG || include ? whole : (ACC)1 / (ACC)(tall * PIXELS(ox, sw, pl, kw, w));
                            u64 at = plane + (oy * wo + ox) * XS(c) + first;
                            EACH_VECTOR s[p][q] += LOAD_VECTOR(g, at + q * LANES) * share;
                        }
                    }
                }
                u64 to = out + begin * XS(c) + first;
                EACH_VECTOR {
                    PUT(to + q * LANES * LANE)
                }
            }
            for (; first < BESIDE(begin); first++) {
                ACC s = (ACC)0;
                for (INDEX oy = above; oy < below; oy++) {
                    INDEX tall = PIXELS(oy, sh, pt, kh, h);
                    for (INDEX ox = from; ox < end; ox++) {
                        INDEX pixels = include ? kh * kw : tall * PIXELS(ox, sw, pl, kw, w);
                        s += LOAD(g, plane + (oy * wo + ox) * XS(c) + first) / (ACC)pixels;
                    }
                }
                STORE(dx, out + begin * XS(c) + first, s);
            }
        }
    }
}
