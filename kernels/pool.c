/* Pooling: one work-item per element of the result, or per row of them. INDEX, CS, YS, XS as in conv.c; every window holds at
   least one pixel. */

#define SIZES                                                                                                          \
    u64 n_, u64 c_, u64 h_, u64 w_, u64 kh_, u64 kw_, u64 ho_, u64 wo_, u64 sh_, u64 sw_, u64 pt_, u64 pl_
#define NARROW                                                                                                         \
    INDEX c = (INDEX)c_, h = (INDEX)h_, w = (INDEX)w_, kh = (INDEX)kh_, kw = (INDEX)kw_, ho = (INDEX)ho_,              \
          wo = (INDEX)wo_, sh = (INDEX)sh_, sw = (INDEX)sw_, pt = (INDEX)pt_, pl = (INDEX)pl_

/* First pixel and end of the window at position o of an axis. */
#define FIRST(o, stride, pad) ((o) * (stride) > (pad) ? (o) * (stride) - (pad) : 0)
#define LAST(o, stride, pad, k, size) ((o) * (stride) + (k) - (pad) < (size) ? (o) * (stride) + (k) - (pad) : (size))
/* First position and end of those whose window holds pixel i of an axis. */
#define FROM(i, stride, pad, k) ((i) + (pad) >= (k) ? ((i) + (pad) - (k)) / (stride) + 1 : 0)
#define TO(i, stride, pad, count) (((i) + (pad)) / (stride) < (count) ? ((i) + (pad)) / (stride) + 1 : (count))

/* y and the place of y in its plane: the first maximum, or the first NaN. */
KERNEL_WG(maxpool2d, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, GLOBAL i32 *RESTRICT places, SIZES) {
    NARROW;
    u64 item = FLAT_GRP() * GROUP + LID(0);
    if (item < n_ * c_ * ho_ * wo_) {
        INDEX i = (INDEX)item;
        INDEX oy = i / YS(c, wo) % ho;
        INDEX ox = i / XS(c) % wo;
        INDEX plane = i / (c * ho * wo) * (c * h * w) + i / CS(ho, wo) % c * CS(h, w);
        INDEX best = FIRST(oy, sh, pt) * w + FIRST(ox, sw, pl);
        ACC top = LOAD(x, plane + FIRST(oy, sh, pt) * YS(c, w) + FIRST(ox, sw, pl) * XS(c));
        for (INDEX row = FIRST(oy, sh, pt); row < LAST(oy, sh, pt, kh, h); row++) {
            for (INDEX column = FIRST(ox, sw, pl); column < LAST(ox, sw, pl, kw, w); column++) {
                ACC v = LOAD(x, plane + row * YS(c, w) + column * XS(c));
                if (v > top || (IS_NAN(v) && !IS_NAN(top))) {
                    top = v;
                    best = row * w + column;
                }
            }
        }
        /* The bits of x, not of ACC: nothing is computed. */
        y[i] = x[plane + best / w * YS(c, w) + best % w * XS(c)];
        places[i] = (i32)best;
    }
}

/* y: the mean over the window; with include = 1 the padding counts as zeros. */
KERNEL_WG(avgpool2d, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, SIZES, u64 include) {
    NARROW;
    u64 item = FLAT_GRP() * GROUP + LID(0);
    if (item < n_ * c_ * ho_ * wo_) {
        INDEX i = (INDEX)item;
        INDEX oy = i / YS(c, wo) % ho;
        INDEX ox = i / XS(c) % wo;
        INDEX plane = i / (c * ho * wo) * (c * h * w) + i / CS(ho, wo) % c * CS(h, w);
        INDEX rows = LAST(oy, sh, pt, kh, h);
        INDEX columns = LAST(ox, sw, pl, kw, w);
        ACC s = (ACC)0;
        for (INDEX row = FIRST(oy, sh, pt); row < rows; row++) {
            for (INDEX column = FIRST(ox, sw, pl); column < columns; column++) {
                s += LOAD(x, plane + row * YS(c, w) + column * XS(c));
            }
        }
        INDEX count = include ? kh * kw : (rows - FIRST(oy, sh, pt)) * (columns - FIRST(ox, sw, pl));
        STORE(y, i, s / (ACC)count);
    }
}

/* dx: every pixel collects g from the windows that hold it and name it. */
KERNEL_WG(maxpool2d_bwd, GROUP, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL const i32 *RESTRICT places, GLOBAL T *RESTRICT dx, SIZES) {
    NARROW;
    u64 item = FLAT_GRP() * GROUP + LID(0);
    if (item < n_ * c_ * h_ * w_) {
        INDEX i = (INDEX)item;
        INDEX row = i / YS(c, w) % h;
        INDEX column = i / XS(c) % w;
        INDEX plane = i / (c * h * w) * (c * ho * wo) + i / CS(h, w) % c * CS(ho, wo);
        i32 place = (i32)(row * w + column);
        ACC s = (ACC)0;
        for (INDEX oy = FROM(row, sh, pt, kh); oy < TO(row, sh, pt, ho); oy++) {
            for (INDEX ox = FROM(column, sw, pl, kw); ox < TO(column, sw, pl, wo); ox++) {
                INDEX at = plane + oy * YS(c, wo) + ox * XS(c);
                if (places[at] == place) {
                    s += LOAD(g, at);
                }
            }
        }
        STORE(dx, i, s);
    }
}

/* dx: every pixel collects its share of g from the windows that hold it. */
KERNEL_WG(avgpool2d_bwd, GROUP, 1, 1)(GLOBAL const T *RESTRICT g, GLOBAL T *RESTRICT dx, SIZES, u64 include) {
    NARROW;
    u64 item = FLAT_GRP() * GROUP + LID(0);
    if (item < n_ * c_ * h_ * w_) {
        INDEX i = (INDEX)item;
        INDEX row = i / YS(c, w) % h;
        INDEX column = i / XS(c) % w;
        INDEX plane = i / (c * h * w) * (c * ho * wo) + i / CS(h, w) % c * CS(ho, wo);
        ACC s = (ACC)0;
        for (INDEX oy = FROM(row, sh, pt, kh); oy < TO(row, sh, pt, ho); oy++) {
            for (INDEX ox = FROM(column, sw, pl, kw); ox < TO(column, sw, pl, wo); ox++) {
                INDEX count = include ? kh * kw
                                      : (LAST(oy, sh, pt, kh, h) - FIRST(oy, sh, pt)) *
                                            (LAST(ox, sw, pl, kw, w) - FIRST(ox, sw, pl));
                s += LOAD(g, plane + oy * YS(c, wo) + ox * XS(c)) / (ACC)count;
            }
        }
        STORE(dx, i, s);
    }
}

/* For processors: a group takes `each` rows of results and walks them in strips, of which compilers make vectors. Where
   channels are planes (ALONG), a strip is WIDE positions of windows LANE = sw apart, or single ones: at the border, and where
   sw is no number that LANE may be. Else it is WIDE channels of one place. */

/* Whether the windows at WIDE positions from o on lie within the image. */
#define WITHIN(o) (ALONG && sw == LANE && (o) + WIDE <= wo && (o) * sw >= pl && ((o) + WIDE - 1) * sw + kw <= w + pl)
/* Whether WIDE * LANE pixels from i on lie in whole windows alone, the first of which is number LEFTMOST(i). */
#define LEFTMOST(i) (((i) + pl + LANE - kw) / LANE)
#define COVERED(i)                                                                                                     \
    (ALONG && sw == LANE && (i) + WIDE * LANE <= w && (i) + pl + LANE >= kw && LEFTMOST(i) * LANE >= pl &&             \
     ((i) + WIDE * LANE - 1 + pl) / LANE < wo && ((i) + WIDE * LANE - 1 + pl) / LANE * LANE + kw <= w + pl)
/* The first and the last place in a row of `size` where a strip of `length` may begin: these are neighbours. None: `size`. */
#define BOUNDS(size, length, fits)                                                                                     \
    INDEX low = 0;                                                                                                     \
    while (low < size && !fits(low)) {                                                                                 \
        low++;                                                                                                         \
    }                                                                                                                  \
    INDEX high = low < size ? size - (length) : low;                                                                   \
    while (low < size && !fits(high)) {                                                                                \
        high--;                                                                                                        \
    }
/* Where the strip behind that at o begins; the last one overlaps that before it. */
#define NEXT(o, length)                                                                                                \
    ((o) < low || (o) > high ? (o) + 1 : (o) < high ? MIN((o) + (length), high) : (o) + (length))

/* As maxpool2d. */
KERNEL_WG(maxpool2d_rows, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, GLOBAL i32 *RESTRICT places, SIZES, u64 each) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * ho_;
    BOUNDS(wo, WIDE, WITHIN)
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX oy = (INDEX)(r % ho_);
        INDEX plane = (INDEX)(r / ho_) * (h * w * XS(c));
        INDEX out = (INDEX)r * (wo * XS(c));
        INDEX above = FIRST(oy, sh, pt);
        for (INDEX ox = 0; ox < wo; ox = NEXT(ox, WIDE)) {
            INDEX left = FIRST(ox, sw, pl);
            INDEX right = LAST(ox, sw, pl, kw, w);
            INDEX beside = ALONG ? (ox >= low && ox <= high ? WIDE : 1) : c;
            for (INDEX first = 0; first < beside; first += WIDE) {
                u32 width = (u32)MIN(beside - first, WIDE);
                ACC top[WIDE];
                INDEX best[WIDE];
                u64 from = plane + (above * w + left) * XS(c) + first;
                EACH(l, width, WIDE, best[l] = above * w + left + (ALONG ? l * LANE : 0); top[l] = LOAD(x, from + l * LANE);)
                for (INDEX row = above; row < LAST(oy, sh, pt, kh, h); row++) {
                    for (INDEX column = left; column < right; column++) {
                        INDEX place = row * w + column;
                        u64 at = plane + place * XS(c) + first;
                        EACH(l, width, WIDE, ACC v = LOAD(x, at + l * LANE);
                             bool better = v > top[l] || (IS_NAN(v) && !IS_NAN(top[l])); top[l] = better ? v : top[l];
                             best[l] = better ? place + (ALONG ? l * LANE : 0) : best[l];)
                    }
                }
                u64 to = out + ox * XS(c) + first;
                EACH(l, width, WIDE, y[to + l] = x[plane + best[l] * XS(c) + (ALONG ? 0 : first + l)];
                     places[to + l] = (i32)best[l];)
            }
        }
    }
}

/* As avgpool2d. */
KERNEL_WG(avgpool2d_rows, 1, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, SIZES, u64 include, u64 each) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * ho_;
    BOUNDS(wo, WIDE, WITHIN)
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX oy = (INDEX)(r % ho_);
        INDEX plane = (INDEX)(r / ho_) * (h * w * XS(c));
        INDEX out = (INDEX)r * (wo * XS(c));
        INDEX above = FIRST(oy, sh, pt);
        INDEX below = LAST(oy, sh, pt, kh, h);
        for (INDEX ox = 0; ox < wo; ox = NEXT(ox, WIDE)) {
            INDEX left = FIRST(ox, sw, pl);
            INDEX right = LAST(ox, sw, pl, kw, w);
            INDEX count = include ? kh * kw : (below - above) * (right - left);
            INDEX beside = ALONG ? (ox >= low && ox <= high ? WIDE : 1) : c;
            for (INDEX first = 0; first < beside; first += WIDE) {
                u32 width = (u32)MIN(beside - first, WIDE);
                ACC s[WIDE];
                EACH(l, width, WIDE, s[l] = (ACC)0;)
                for (INDEX row = above; row < below; row++) {
                    for (INDEX column = left; column < right; column++) {
                        u64 at = plane + (row * w + column) * XS(c) + first;
                        EACH(l, width, WIDE, s[l] += LOAD(x, at + l * LANE);)
                    }
                }
                u64 to = out + ox * XS(c) + first;
                EACH(l, width, WIDE, STORE(y, to + l, s[l] / (ACC)count);)
            }
        }
    }
}

/* As maxpool2d_bwd: every LANE-th pixel of a strip lies in windows beside each other. */
KERNEL_WG(maxpool2d_bwd_rows, 1, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL const i32 *RESTRICT places, GLOBAL T *RESTRICT dx, SIZES, u64 each) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * h_;
    BOUNDS(w, WIDE * LANE, COVERED)
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX row = (INDEX)(r % h_);
        INDEX plane = (INDEX)(r / h_) * (ho * wo * XS(c));
        INDEX out = (INDEX)r * (w * XS(c));
        INDEX above = FROM(row, sh, pt, kh);
        INDEX below = TO(row, sh, pt, ho);
        for (INDEX begin = 0; begin < w; begin = NEXT(begin, WIDE * LANE)) {
            bool covered = begin >= low && begin <= high;
            INDEX beside = ALONG ? (covered ? WIDE : 1) : c;
            for (INDEX first = 0; first < beside; first += WIDE) {
                u32 width = (u32)MIN(beside - first, WIDE);
                ACC s[LANE][WIDE];
                for (u32 q = 0; q < (covered ? LANE : 1); q++) {
                    EACH(l, width, WIDE, s[q][l] = (ACC)0;)
                    INDEX column = begin + q;
                    INDEX left = covered ? LEFTMOST(column) : FROM(column, sw, pl, kw);
                    INDEX right = covered ? TO(column, LANE, pl, wo) : TO(column, sw, pl, wo);
                    i32 place = (i32)(row * w + column);
                    for (INDEX oy = above; oy < below; oy++) {
                        for (INDEX ox = left; ox < right; ox++) {
                            u64 at = plane + (oy * wo + ox) * XS(c) + first;
                            EACH(l, width, WIDE, bool own = places[at + l] == place + (ALONG ? (i32)(l * LANE) : 0);
                                 s[q][l] += own ? LOAD(g, at + l) : (ACC)0;)
                        }
                    }
                }
                u64 to = out + begin * XS(c) + first;
                if (covered) {
                    for (u32 l = 0; l < WIDE; l++) {
                        for (u32 q = 0; q < LANE; q++) {
                            STORE(dx, to + l * LANE + q, s[q][l]);
                        }
                    }
                } else {
                    EACH(l, width, WIDE, STORE(dx, to + l, s[0][l]);)
                }
            }
        }
    }
}

/* As avgpool2d_bwd. */
KERNEL_WG(avgpool2d_bwd_rows, 1, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL T *RESTRICT dx, SIZES, u64 include, u64 each) {
    NARROW;
    u64 rows = (ALONG ? n_ * c_ : n_) * h_;
    BOUNDS(w, WIDE * LANE, COVERED)
    for (u64 r = FLAT_GRP() * each; r < MIN(FLAT_GRP() * each + each, rows); r++) {
        INDEX row = (INDEX)(r % h_);
        INDEX plane = (INDEX)(r / h_) * (ho * wo * XS(c));
        INDEX out = (INDEX)r * (w * XS(c));
        INDEX above = FROM(row, sh, pt, kh);
        INDEX below = TO(row, sh, pt, ho);
        for (INDEX begin = 0; begin < w; begin = NEXT(begin, WIDE * LANE)) {
            bool covered = begin >= low && begin <= high;
            INDEX beside = ALONG ? (covered ? WIDE : 1) : c;
            for (INDEX first = 0; first < beside; first += WIDE) {
                u32 width = (u32)MIN(beside - first, WIDE);
                ACC s[LANE][WIDE];
                for (u32 q = 0; q < (covered ? LANE : 1); q++) {
                    EACH(l, width, WIDE, s[q][l] = (ACC)0;)
                    INDEX column = begin + q;
                    INDEX left = covered ? LEFTMOST(column) : FROM(column, sw, pl, kw);
                    INDEX right = covered ? TO(column, LANE, pl, wo) : TO(column, sw, pl, wo);
                    for (INDEX oy = above; oy < below; oy++) {
                        for (INDEX ox = left; ox < right; ox++) {
                            INDEX tall = LAST(oy, sh, pt, kh, h) - FIRST(oy, sh, pt);
                            INDEX broad = LAST(ox, sw, pl, kw, w) - FIRST(ox, sw, pl);
                            ACC count = (ACC)(include ? kh * kw : tall * broad);
                            u64 at = plane + (oy * wo + ox) * XS(c) + first;
                            EACH(l, width, WIDE, s[q][l] += LOAD(g, at + l) / count;)
                        }
                    }
                }
                u64 to = out + begin * XS(c) + first;
                if (covered) {
                    for (u32 l = 0; l < WIDE; l++) {
                        for (u32 q = 0; q < LANE; q++) {
                            STORE(dx, to + l * LANE + q, s[q][l]);
                        }
                    }
                } else {
                    EACH(l, width, WIDE, STORE(dx, to + l, s[0][l]);)
                }
            }
        }
    }
}
