/* Pooling: one work-item per element of the result. INDEX, CS, YS, XS as in conv.c; every window holds at least one pixel. */

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
