/* Sums over the middle axis of [outer, n, inner], of products, and of squares. An axis longer than `segment` is summed in
   `parts` pieces; a second launch sums the pieces, so the order of additions never depends on timing. GROUP is a power of
   two. A work-item has WIDE sums of neighbours beside each other, of which a processor's compiler makes vectors, and goes
   through STRETCHES of its segment at a time, since one alone leaves a processor waiting for memory. */

/* The places at which a work-item reads in turn, i of each stretch. A GPU's compiler unrolls what it can count, and then asks
   for all of them at once; a processor's is not to (PoCL took 116 us instead of 102 for a sum of 2^20 numbers). */
#define EACH_STRETCH(from, i, stretch, length)                                                                         \
    for (u64 turn = 0, from = (i); (GROUP == 1 || turn < STRETCHES) && from < (length); turn++, from += (stretch))

/* inner = 1: group (row, part) sums x[row, part*segment ..] in a tree and stores y[row, part]. */
KERNEL_WG(sum_rows, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL OUT *RESTRICT y, u64 outer, u64 n, u64 segment, u64 parts) {
    SHARED ACC tree[GROUP];
    u32 lid = LID(0);
    u64 flat = FLAT_GRP();
    u64 row = flat / parts;
    /* A whole group leaves, so nobody waits for it at a barrier. */
    if (row >= outer) return;
    u64 begin = (flat - row * parts) * segment;
    u64 length = MIN(n - begin, segment);
    u64 base = row * n + begin;
    ACC s[WIDE];
    for (u32 l = 0; l < WIDE; l++) {
        s[l] = (ACC)0;
    }
    u64 stretch = (length + STRETCHES - 1) / STRETCHES;
    for (u64 i = lid * WIDE; i < stretch; i += GROUP * WIDE) {
        EACH_STRETCH(from, i, stretch, length) {
            u32 width = (u32)MIN(MIN(stretch - i, length - from), WIDE);
            u64 at = base + from;
            READ_AHEAD(x, at, WIDE, outer * n)
            EACH(l, width, WIDE, s[l] += LOAD(x, at + l);)
        }
    }
    for (u32 w = WIDE / 2; w > 0; w /= 2) {
        for (u32 l = 0; l < w; l++) {
            s[l] += s[l + w];
        }
    }
    tree[lid] = s[0];
    BARRIER();
    for (u32 half_width = GROUP / 2; half_width > 0; half_width /= 2) {
        if (lid < half_width) {
            tree[lid] += tree[lid + half_width];
        }
        BARRIER();
    }
    if (lid == 0) {
        STORE_OUT(y, flat, tree[0]);
    }
}

/* inner > 1: a work-item per outer, part and WIDE neighbours of inner walks down its columns; neighbours read neighbouring
   columns. Stores y[outer, part, inner]. */
KERNEL_WG(sum_columns, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL OUT *RESTRICT y, u64 outer, u64 n, u64 inner, u64 segment, u64 parts) {
    u64 item = FLAT_GRP() * GROUP + LID(0);
    u64 strips = (inner + WIDE - 1) / WIDE;
    if (item < outer * parts * strips) {
        u64 rest = item / strips;
        u64 column = (item - rest * strips) * WIDE;
        u32 width = (u32)MIN(inner - column, WIDE);
        u64 row = rest / parts;
        u64 begin = (rest - row * parts) * segment;
        u64 end = begin + MIN(n - begin, segment);
        ACC s[WIDE];
        for (u32 l = 0; l < WIDE; l++) {
            s[l] = (ACC)0;
        }
        for (u64 i = begin; i < end; i++) {
            EACH(l, width, WIDE, s[l] += LOAD(x, (row * n + i) * inner + column + l);)
        }
        EACH(l, width, WIDE, STORE_OUT(y, rest * inner + column + l, s[l]);)
    }
}

/* y[i] = sums[i] / count for i < n. */
KERNEL_WG(divide, GROUP, 1, 1)(GLOBAL const T *RESTRICT sums, GLOBAL OUT *RESTRICT y, u64 n, ACC count) {
    u64 i = FLAT_GRP() * GROUP + LID(0);
    if (i < n) {
        STORE_OUT(y, i, LOAD(sums, i) / count);
    }
}

/* Group `part` stores out[part] = sum of a[i] b[i] over its segment of n. */
KERNEL_WG(dot_part, GROUP, 1, 1)
(GLOBAL const T *RESTRICT a, GLOBAL const T *RESTRICT b, GLOBAL OUT *RESTRICT out, u64 n, u64 segment, u64 parts) {
    SHARED ACC tree[GROUP];
    u32 lid = LID(0);
    u64 part = FLAT_GRP();
    if (part >= parts) return;
    u64 begin = part * segment;
    u64 length = MIN(n - begin, segment);
    ACC s[WIDE];
    for (u32 l = 0; l < WIDE; l++) {
        s[l] = (ACC)0;
    }
    u64 stretch = (length + STRETCHES - 1) / STRETCHES;
    for (u64 i = lid * WIDE; i < stretch; i += GROUP * WIDE) {
        EACH_STRETCH(from, i, stretch, length) {
            u32 width = (u32)MIN(MIN(stretch - i, length - from), WIDE);
            u64 at = begin + from;
            EACH(l, width, WIDE, s[l] += LOAD(a, at + l) * LOAD(b, at + l);)
        }
    }
    for (u32 w = WIDE / 2; w > 0; w /= 2) {
        for (u32 l = 0; l < w; l++) {
            s[l] += s[l + w];
        }
    }
    tree[lid] = s[0];
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            tree[lid] += tree[lid + w];
        }
        BARRIER();
    }
    if (lid == 0) {
        STORE_OUT(out, part, tree[0]);
    }
}

/* Sums of squares in three ranges, so that none overflows or vanishes (Blue 1978; Anderson 2017): of numbers from `high`
   on times `shrink`, of those below `low` times `grow`, of the others and NaN as they are. Group (range, part) stores
   out[range, part]; ranges 0, 1 and 2 are high, middle and low. */
KERNEL_WG(squares_part, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL ACC *RESTRICT out, u64 n, u64 segment, u64 parts, ACC low, ACC high, ACC grow,
 ACC shrink, ACC enough) {
    SHARED ACC tree[3][GROUP];
    u32 lid = LID(0);
    u64 part = FLAT_GRP();
    if (part >= parts) return;
    u64 begin = part * segment;
    u64 length = MIN(n - begin, segment);
    ACC s[WIDE];
    for (u32 l = 0; l < WIDE; l++) {
        s[l] = (ACC)0;
    }
    u64 stretch = (length + STRETCHES - 1) / STRETCHES;
    for (u64 i = lid * WIDE; i < stretch; i += GROUP * WIDE) {
        EACH_STRETCH(from, i, stretch, length) {
            u32 width = (u32)MIN(MIN(stretch - i, length - from), WIDE);
            u64 at = begin + from;
            READ_AHEAD(x, at, WIDE, n)
            EACH(l, width, WIDE, s[l] += LOAD(x, at + l) * LOAD(x, at + l);)
        }
    }
    for (u32 w = WIDE / 2; w > 0; w /= 2) {
        for (u32 l = 0; l < w; l++) {
            s[l] += s[l + w];
        }
    }
    ACC above = (ACC)0;
    ACC middle = s[0];
    ACC below = (ACC)0;
    /* A sum below the square of `high` has no high numbers in it. In one of at least `enough` the low ones do not count, not
       even a segment of them. Else, for NaN, too, the squares are summed range by range. */
    if (!(middle >= enough && middle < high * high)) {
        middle = (ACC)0;
        /* In runs, whose sums are summed: a long row of additions would lose more to rounding. */
        for (u64 run = lid; run < length; run += GROUP * 256) {
            ACC big = (ACC)0;
            ACC usual = (ACC)0;
            ACC small = (ACC)0;
            u64 end = MIN(run + GROUP * 256, length);
            for (u64 i = run; i < end; i += GROUP) {
                ACC v = LOAD(x, begin + i);
                ACC m = fabs(v);
                if (m >= high) {
                    big += v * shrink * (v * shrink);
                } else if (m < low) {
                    small += v * grow * (v * grow);
                } else {
                    usual += v * v;
                }
            }
            above += big;
            middle += usual;
            below += small;
        }
    }
    tree[0][lid] = above;
    tree[1][lid] = middle;
    tree[2][lid] = below;
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            tree[0][lid] += tree[0][lid + w];
            tree[1][lid] += tree[1][lid + w];
            tree[2][lid] += tree[2][lid + w];
        }
        BARRIER();
    }
    for (u32 range = lid; range < 3; range += GROUP) {
        out[range * parts + part] = tree[range][0];
    }
}

/* y = square root of the three sums together. Where high numbers occur, low ones do not count; where the middle sum is
   at least 1, neither. `up` keeps a small middle sum from vanishing; `mix` is ungrow * up, `down` is 1 / up. ROOT is sqrt, and
   nothing for integers, for which no launch comes here. */
KERNEL_WG(root, GROUP, 1, 1)
(GLOBAL const ACC *RESTRICT sums, GLOBAL OUT *RESTRICT y, ACC shrink, ACC unshrink, ACC ungrow, ACC up, ACC mix,
 ACC down) {
    if (FLAT_GRP() == 0 && LID(0) == 0) {
        ACC big = sums[0];
        ACC middle = sums[1];
        ACC small = sums[2];
        ACC r;
        if (big != (ACC)0) {
            r = ROOT(big + middle * shrink * shrink) * unshrink;
        } else if (middle == (ACC)0) {
            r = ROOT(small) * ungrow;
        } else if (middle < (ACC)1) {
            r = ROOT(middle * up * up + small * mix * mix) * down;
        } else {
            r = ROOT(middle);
        }
        STORE_OUT(y, 0, r);
    }
}
