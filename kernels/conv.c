/* Convolutions of images, directly: a sum per result. INDEX is u32 where every index fits, else u64; unsigned, so that a
   coordinate left of or above the image wraps to a large number. The layout of a tensor of nc channels, nh rows and
   nw columns is CS(nh, nw), YS(nc, nw), XS(nc): the distances of channels, rows and columns. Filters lie like images. */

#define SIZES                                                                                                          \
    u64 n_, u64 c_, u64 h_, u64 w_, u64 co_, u64 kh_, u64 kw_, u64 ho_, u64 wo_, u64 sh_, u64 sw_, u64 pt_, u64 pl_,   \
        u64 dh_, u64 dw_, u64 group_
#define NARROW                                                                                                         \
    INDEX n = (INDEX)n_, c = (INDEX)c_, h = (INDEX)h_, w = (INDEX)w_, co = (INDEX)co_, kh = (INDEX)kh_,                \
          kw = (INDEX)kw_, ho = (INDEX)ho_, wo = (INDEX)wo_, sh = (INDEX)sh_, sw = (INDEX)sw_, pt = (INDEX)pt_,        \
          pl = (INDEX)pl_, dh = (INDEX)dh_, dw = (INDEX)dw_, cg = (INDEX)(c_ / group_), og = (INDEX)(co_ / group_)

/* y: one work-item per element. The padding is zeros that are multiplied like other numbers. */
KERNEL_WG(conv2d, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL const T *RESTRICT f, GLOBAL T *RESTRICT y, SIZES) {
    NARROW;
    u64 item = FLAT_GRP() * GROUP + LID(0);
    if (item < n_ * co_ * ho_ * wo_) {
        INDEX i = (INDEX)item;
        INDEX filter = i / CS(ho, wo) % co;
        INDEX y0 = i / YS(co, wo) % ho * sh - pt;
        INDEX x0 = i / XS(co) % wo * sw - pl;
        INDEX image = i / (co * ho * wo) * (c * h * w) + filter / og * cg * CS(h, w);
        INDEX weights = filter * (cg * kh * kw);
        ACC s = (ACC)0;
        for (INDEX j = 0; j < cg; j++) {
            for (INDEX ky = 0; ky < kh; ky++) {
                INDEX row = y0 + ky * dh;
                for (INDEX kx = 0; kx < kw; kx++) {
                    INDEX column = x0 + kx * dw;
                    ACC v = (ACC)0;
                    if (row < h && column < w) {
                        v = LOAD(x, image + j * CS(h, w) + row * YS(c, w) + column * XS(c));
                    }
                    s += v * LOAD(f, weights + j * CS(kh, kw) + ky * YS(cg, kw) + kx * XS(cg));
                }
            }
        }
        STORE(y, i, s);
    }
}

/* dx: one work-item per element gathers from the results that it took part in. */
KERNEL_WG(conv2d_bwd_data, GROUP, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL const T *RESTRICT f, GLOBAL T *RESTRICT dx, SIZES) {
    NARROW;
    u64 item = FLAT_GRP() * GROUP + LID(0);
    if (item < n_ * c_ * h_ * w_) {
        INDEX i = (INDEX)item;
        INDEX channel = i / CS(h, w) % c;
        INDEX row = i / YS(c, w) % h + pt;
        INDEX column = i / XS(c) % w + pl;
        INDEX first = channel / cg * og;
        INDEX image = i / (c * h * w) * (co * ho * wo) + first * CS(ho, wo);
        INDEX weights = first * (cg * kh * kw) + channel % cg * CS(kh, kw);
        ACC s = (ACC)0;
        for (INDEX ky = 0; ky < kh; ky++) {
            INDEX y0 = row - ky * dh;
            for (INDEX kx = 0; kx < kw; kx++) {
                INDEX x0 = column - kx * dw;
                if (row >= ky * dh && column >= kx * dw && y0 % sh == 0 && x0 % sw == 0 && y0 / sh < ho &&
                    x0 / sw < wo) {
                    INDEX from = image + y0 / sh * YS(co, wo) + x0 / sw * XS(co);
                    INDEX with = weights + ky * YS(cg, kw) + kx * XS(cg);
                    for (INDEX j = 0; j < og; j++) {
                        s += LOAD(g, from + j * CS(ho, wo)) * LOAD(f, with + j * (cg * kh * kw));
                    }
                }
            }
        }
        STORE(dx, i, s);
    }
}

/* df: a group per element, for there are few elements and many terms. GROUP is a power of two. */
KERNEL_WG(conv2d_bwd_weight, GROUP, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT df, SIZES) {
    SHARED ACC tree[GROUP];
    NARROW;
    u32 lid = LID(0);
    u64 item = FLAT_GRP();
    /* A whole group leaves, so nobody waits for it at a barrier. */
    if (item >= co_ * (c_ / group_) * kh_ * kw_) return;
    INDEX i = (INDEX)item;
    INDEX filter = i / (cg * kh * kw);
    INDEX channel = filter / og * cg + i / CS(kh, kw) % cg;
    INDEX y0 = i / YS(cg, kw) % kh * dh - pt;
    INDEX x0 = i / XS(cg) % kw * dw - pl;
    INDEX pixels = ho * wo;
    INDEX terms = n * pixels;
    ACC s = (ACC)0;
    for (INDEX t = lid; t < terms; t += GROUP) {
        INDEX image = t / pixels;
        INDEX oy = (t - image * pixels) / wo;
        INDEX ox = (t - image * pixels) - oy * wo;
        INDEX row = y0 + oy * sh;
        INDEX column = x0 + ox * sw;
        ACC v = (ACC)0;
        if (row < h && column < w) {
            v = LOAD(x, image * (c * h * w) + channel * CS(h, w) + row * YS(c, w) + column * XS(c));
        }
        s += v * LOAD(g, image * (co * pixels) + filter * CS(ho, wo) + oy * YS(co, wo) + ox * XS(co));
    }
    tree[lid] = s;
    BARRIER();
    for (u32 half_width = GROUP / 2; half_width > 0; half_width /= 2) {
        if (lid < half_width) {
            tree[lid] += tree[lid + half_width];
        }
        BARRIER();
    }
    if (lid == 0) {
        STORE(df, i, tree[0]);
    }
}

/* Convolutions as products. The one factor is never made but gathered tile by tile (implicit im2col): a group computes TM rows
   by TN columns in steps of TK terms through local memory. ty and tx are a work-item's place; it holds RM by RN sums. */
#define PLACE(acc)                                                                                                     \
    u32 lid = LID(0);                                                                                                  \
    u32 tx = lid % (TN / RN);                                                                                          \
    u32 ty = lid / (TN / RN);                                                                                          \
    ACC acc[RM][RN];                                                                                                   \
    for (u32 i = 0; i < RM; i++) {                                                                                     \
        for (u32 j = 0; j < RN; j++) {                                                                                 \
            acc[i][j] = (ACC)0;                                                                                        \
        }                                                                                                              \
    }
#define ADD_PRODUCT(acc, rows, columns)                                                                                \
    BARRIER();                                                                                                         \
    for (u32 p = 0; p < TK; p++) {                                                                                     \
        ACC left[RM];                                                                                                  \
        ACC right[RN];                                                                                                 \
        for (u32 i = 0; i < RM; i++) {                                                                                 \
            left[i] = rows[p][ty + i * (TM / RM)];                                                                     \
        }                                                                                                              \
        for (u32 j = 0; j < RN; j++) {                                                                                 \
            right[j] = columns[p][tx + j * (TN / RN)];                                                                 \
        }                                                                                                              \
        for (u32 i = 0; i < RM; i++) {                                                                                 \
            for (u32 j = 0; j < RN; j++) {                                                                             \
                acc[i][j] += left[i] * right[j];                                                                       \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    BARRIER();

/* y: filters by pixels of one image and filter group; a column is what a result sees. */
KERNEL_WG(conv2d_tiled, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const T *RESTRICT f, GLOBAL T *RESTRICT y, SIZES) {
    SHARED ACC tile_f[TK][TM + 1];
    SHARED ACC tile_x[TK][TN + 1];
    NARROW;
    PLACE(acc);
    INDEX pixels = ho * wo;
    INDEX depth = cg * kh * kw;
    INDEX across = (pixels + TN - 1) / TN;
    INDEX tiles = (og + TM - 1) / TM * across;
    INDEX flat = (INDEX)FLAT_GRP();
    /* A whole group leaves, so nobody waits for it at a barrier. */
    if (flat / tiles >= n * (INDEX)group_) return;
    INDEX batch = flat / tiles;
    INDEX tile = flat % tiles;
    INDEX row0 = tile / across * TM;
    INDEX col0 = tile % across * TN;
    INDEX part = batch % (INDEX)group_;
    INDEX image = batch / (INDEX)group_ * (c * h * w) + part * cg * CS(h, w);
    for (INDEX k0 = 0; k0 < depth; k0 += TK) {
        for (u32 e = lid; e < TM * TK; e += GROUP) {
            INDEX filter = row0 + e / TK;
            INDEX term = k0 + e % TK;
            ACC v = (ACC)0;
            if (filter < og && term < depth) {
                v = LOAD(f, (part * og + filter) * depth + term);
            }
            tile_f[e % TK][e / TK] = v;
        }
        for (u32 e = lid; e < TK * TN; e += GROUP) {
            INDEX term = k0 + e / TN;
            INDEX pixel = col0 + e % TN;
            INDEX row = pixel / wo * sh - pt + term / YS(cg, kw) % kh * dh;
            INDEX column = pixel % wo * sw - pl + term / XS(cg) % kw * dw;
            ACC v = (ACC)0;
            if (term < depth && pixel < pixels && row < h && column < w) {
                v = LOAD(x, image + term / CS(kh, kw) % cg * CS(h, w) + row * YS(c, w) + column * XS(c));
            }
            tile_x[e / TN][e % TN] = v;
        }
        ADD_PRODUCT(acc, tile_f, tile_x);
    }
    image = batch / (INDEX)group_ * (co * pixels) + part * og * CS(ho, wo);
    for (u32 i = 0; i < RM; i++) {
        INDEX filter = row0 + ty + i * (TM / RM);
        for (u32 j = 0; j < RN; j++) {
            INDEX pixel = col0 + tx + j * (TN / RN);
            if (filter < og && pixel < pixels) {
                STORE(y, image + filter * CS(ho, wo) + pixel / wo * YS(co, wo) + pixel % wo * XS(co), acc[i][j]);
            }
        }
    }
}

/* dx where strides are 1: channels by pixels of one image and filter group; a column is the results that an x took part in, 0
   where there is none. Terms are filters, then their rows and columns; FILTER_AT, ROW_AT and COLUMN_AT are where they lie. */
#define FILTER_AT(channel, term)                                                                                       \
    ((part * og + (term) / (kh * kw)) * size + (channel) * CS(kh, kw) + (term) / kw % kh * YS(cg, kw) +                \
     (term) % kw * XS(cg))
#define ROW_AT(pixel, term) ((pixel) / w + pt - (term) / kw % kh * dh)
#define COLUMN_AT(pixel, term) ((pixel) % w + pl - (term) % kw * dw)
#define RESULT_AT(row, column, term) (image + (term) / (kh * kw) * CS(ho, wo) + (row) * YS(co, wo) + (column) * XS(co))
KERNEL_WG(conv2d_bwd_data_tiled, GROUP, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL const T *RESTRICT f, GLOBAL T *RESTRICT dx, SIZES) {
    SHARED ACC tile_f[TK][TM + 1];
    SHARED ACC tile_g[TK][TN + 1];
    NARROW;
    PLACE(acc);
    INDEX pixels = h * w;
    INDEX size = cg * kh * kw;
    INDEX depth = og * kh * kw;
    INDEX across = (pixels + TN - 1) / TN;
    INDEX tiles = (cg + TM - 1) / TM * across;
    INDEX flat = (INDEX)FLAT_GRP();
    /* A whole group leaves, so nobody waits for it at a barrier. */
    if (flat / tiles >= n * (INDEX)group_) return;
    INDEX batch = flat / tiles;
    INDEX tile = flat % tiles;
    INDEX row0 = tile / across * TM;
    INDEX col0 = tile % across * TN;
    INDEX part = batch % (INDEX)group_;
    INDEX image = batch / (INDEX)group_ * (co * ho * wo) + part * og * CS(ho, wo);
    for (INDEX k0 = 0; k0 < depth; k0 += TK) {
        for (u32 e = lid; e < TM * TK; e += GROUP) {
            INDEX channel = row0 + e / TK;
            INDEX term = k0 + e % TK;
            ACC v = (ACC)0;
            if (channel < cg && term < depth) {
                v = LOAD(f, FILTER_AT(channel, term));
            }
            tile_f[e % TK][e / TK] = v;
        }
        for (u32 e = lid; e < TK * TN; e += GROUP) {
            INDEX term = k0 + e / TN;
            INDEX pixel = col0 + e % TN;
            INDEX row = ROW_AT(pixel, term);
            INDEX column = COLUMN_AT(pixel, term);
            ACC v = (ACC)0;
            if (term < depth && pixel < pixels && row < ho && column < wo) {
                v = LOAD(g, RESULT_AT(row, column, term));
            }
            tile_g[e / TN][e % TN] = v;
        }
        ADD_PRODUCT(acc, tile_f, tile_g);
    }
    INDEX to = batch / (INDEX)group_ * (c * pixels) + part * cg * CS(h, w);
    for (u32 i = 0; i < RM; i++) {
        INDEX channel = row0 + ty + i * (TM / RM);
        for (u32 j = 0; j < RN; j++) {
            INDEX pixel = col0 + tx + j * (TN / RN);
            if (channel < cg && pixel < pixels) {
                ACC s = acc[i][j];
                if (IS_NAN(s)) {
                    /* Perhaps of a filter's infinity by a 0 that stands for no result: the sum of the real terms. */
                    s = (ACC)0;
                    for (INDEX term = 0; term < depth; term++) {
                        INDEX row = ROW_AT(pixel, term);
                        INDEX column = COLUMN_AT(pixel, term);
                        if (row < ho && column < wo) {
                            s += LOAD(f, FILTER_AT(channel, term)) * LOAD(g, RESULT_AT(row, column, term));
                        }
                    }
                }
                STORE(dx, to + channel * CS(h, w) + pixel / w * YS(c, w) + pixel % w * XS(c), s);
            }
        }
    }
}

/* df: filters by their elements, over all images; a column is what an element of a filter sees. */
KERNEL_WG(conv2d_bwd_weight_tiled, GROUP, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT df, SIZES) {
    SHARED ACC tile_g[TK][TM + 1];
    SHARED ACC tile_x[TK][TN + 1];
    NARROW;
    PLACE(acc);
    INDEX pixels = ho * wo;
    INDEX depth = n * pixels;
    INDEX size = cg * kh * kw;
    INDEX across = (size + TN - 1) / TN;
    INDEX tiles = (og + TM - 1) / TM * across;
    INDEX flat = (INDEX)FLAT_GRP();
    /* A whole group leaves, so nobody waits for it at a barrier. */
    if (flat / tiles >= (INDEX)group_) return;
    INDEX part = flat / tiles;
    INDEX tile = flat % tiles;
    INDEX row0 = tile / across * TM;
    INDEX col0 = tile % across * TN;
    for (INDEX k0 = 0; k0 < depth; k0 += TK) {
        /* Terms are neighbours where pixels are. */
        for (u32 e = lid; e < TM * TK; e += GROUP) {
            INDEX filter = row0 + e / TK;
            INDEX term = k0 + e % TK;
            INDEX pixel = term % pixels;
            ACC v = (ACC)0;
            if (filter < og && term < depth) {
                v = LOAD(g, term / pixels * (co * pixels) + (part * og + filter) * CS(ho, wo) + pixel / wo * YS(co, wo) +
                                pixel % wo * XS(co));
            }
            tile_g[e % TK][e / TK] = v;
        }
        for (u32 e = lid; e < TK * TN; e += GROUP) {
            INDEX element = col0 + e / TK;
            INDEX term = k0 + e % TK;
            INDEX pixel = term % pixels;
            INDEX row = pixel / wo * sh - pt + element / YS(cg, kw) % kh * dh;
            INDEX column = pixel % wo * sw - pl + element / XS(cg) % kw * dw;
            ACC v = (ACC)0;
            if (term < depth && element < size && row < h && column < w) {
                v = LOAD(x, term / pixels * (c * h * w) + (part * cg + element / CS(kh, kw) % cg) * CS(h, w) +
                                row * YS(c, w) + column * XS(c));
            }
            tile_x[e % TK][e / TK] = v;
        }
        ADD_PRODUCT(acc, tile_g, tile_x);
    }
    for (u32 i = 0; i < RM; i++) {
        INDEX filter = row0 + ty + i * (TM / RM);
        for (u32 j = 0; j < RN; j++) {
            INDEX element = col0 + tx + j * (TN / RN);
            if (filter < og && element < size) {
                STORE(df, (part * og + filter) * size + element, acc[i][j]);
            }
        }
    }
}
