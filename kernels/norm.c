/* Softmax over the middle axis of [m, n, inner], and normalisations by mean and variance. GROUP is a power of two. */

/* y = exp(x - top) / sum of the same along the axis; one group per row, rows being `inner` apart. A NaN makes its row NaN,
   as does +infinity (inf - inf). STRIDE is inner, or 1 where it is known to be. */
KERNEL_WG(softmax, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 rows, u64 n, u64 inner) {
    SHARED ACC tree[GROUP];
    u32 lid = LID(0);
    u64 row = FLAT_GRP();
    /* A whole group leaves, so nobody waits for it at a barrier. */
    if (row >= rows) return;
    u64 base = row / inner * n * inner + row % inner;
    ACC top = LOAD(x, base);
    for (u64 j = lid; j < n; j += GROUP) {
        ACC v = LOAD(x, base + j * STRIDE);
        top = v > top || IS_NAN(v) ? v : top;
    }
    tree[lid] = top;
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            ACC v = tree[lid + w];
            tree[lid] = v > tree[lid] || IS_NAN(v) ? v : tree[lid];
        }
        BARRIER();
    }
    top = tree[0];
    /* Everyone has read the maximum before the array is used again. */
    BARRIER();
    ACC part = (ACC)0;
    for (u64 j = lid; j < n; j += GROUP) {
        part += exp(LOAD(x, base + j * STRIDE) - top);
    }
    tree[lid] = part;
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            tree[lid] += tree[lid + w];
        }
        BARRIER();
    }
    ACC s = tree[0];
    for (u64 j = lid; j < n; j += GROUP) {
        STORE(y, base + j * STRIDE, exp(LOAD(x, base + j * STRIDE) - top) / s);
    }
}

/* The same with one work-item for WIDE neighbouring rows, where inner > 1: neighbours read neighbours. */
KERNEL_WG(softmax_columns, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 outer, u64 n, u64 inner) {
    u64 item = FLAT_GRP() * GROUP + LID(0);
    u64 strips = (inner + WIDE - 1) / WIDE;
    if (item < outer * strips) {
        u64 block = item / strips;
        u64 column = (item - block * strips) * WIDE;
        u32 width = (u32)MIN(inner - column, WIDE);
        u64 base = block * n * inner + column;
        ACC top[WIDE];
        ACC s[WIDE];
        for (u32 l = 0; l < WIDE; l++) {
            top[l] = LOAD(x, base + MIN(l, width - 1));
            s[l] = (ACC)0;
        }
        for (u64 j = 1; j < n; j++) {
            EACH(l, width, WIDE, ACC v = LOAD(x, base + j * inner + l); top[l] = v > top[l] || IS_NAN(v) ? v : top[l];)
        }
        for (u64 j = 0; j < n; j++) {
            EACH(l, width, WIDE, s[l] += exp(LOAD(x, base + j * inner + l) - top[l]);)
        }
        for (u64 j = 0; j < n; j++) {
            EACH(l, width, WIDE, STORE(y, base + j * inner + l, exp(LOAD(x, base + j * inner + l) - top[l]) / s[l]);)
        }
    }
}

/* Statistics are taken of x seen as [a, channels, inner], per channel over its a * inner = n elements. All sums are of
   distances from the channel's first element, so a large mean costs no digits. Where that element is not finite, 0. */
FUNCTION ACC shift_of(ACC first) { return first - first == (ACC)0 ? first : (ACC)0; }

/* Group (channel, part): mean distance of its segment to stats[channel, part], sum of squared deviations from that mean to
   stats[channels * parts + (channel, part)]. */
KERNEL_WG(stats_part, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL ACC *RESTRICT stats, u64 channels, u64 inner, u64 n, u64 segment, u64 parts) {
    SHARED ACC tree[GROUP];
    u32 lid = LID(0);
    u64 flat = FLAT_GRP();
    if (flat >= channels * parts) return;
    u64 channel = flat / parts;
    u64 begin = (flat - channel * parts) * segment;
    u64 length = MIN(n - begin, segment);
    ACC shift = shift_of(LOAD(x, channel * inner));
    ACC s = (ACC)0;
    for (u64 i = begin + lid; i < begin + length; i += GROUP) {
        u64 at = inner == n ? channel * n + i : i + (i / inner * (channels - 1) + channel) * inner;
        s += LOAD(x, at) - shift;
    }
    tree[lid] = s;
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            tree[lid] += tree[lid + w];
        }
        BARRIER();
    }
    ACC mean = tree[0] / (ACC)length;
    /* Everyone has read the sum before the array is used again. */
    BARRIER();
    s = (ACC)0;
    for (u64 i = begin + lid; i < begin + length; i += GROUP) {
        u64 at = inner == n ? channel * n + i : i + (i / inner * (channels - 1) + channel) * inner;
        ACC d = LOAD(x, at) - shift - mean;
        s += d * d;
    }
    tree[lid] = s;
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            tree[lid] += tree[lid + w];
        }
        BARRIER();
    }
    if (lid == 0) {
        stats[flat] = mean;
        stats[channels * parts + flat] = tree[0];
    }
}

/* The same for a processor: what lies beside each other in memory is summed in WIDE lanes. */
KERNEL_WG(stats_runs, 1, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL ACC *RESTRICT stats, u64 channels, u64 inner, u64 n, u64 segment, u64 parts) {
    u64 flat = FLAT_GRP();
    if (flat >= channels * parts) return;
    u64 channel = flat / parts;
    u64 begin = (flat - channel * parts) * segment;
    u64 length = MIN(n - begin, segment);
    ACC shift = shift_of(LOAD(x, channel * inner));
    ACC mean = (ACC)0;
    ACC s[WIDE];
    /* Asks for the same channel of the next image where that is not just behind. */
    u64 ahead = inner < 512 ? channels * inner : 512;
    /* First the mean, then the squares. */
    for (u32 round = 0; round < 2; round++) {
        for (u32 l = 0; l < WIDE; l++) {
            s[l] = (ACC)0;
        }
        u64 i = begin;
        while (i < begin + length) {
            u64 image = i / inner;
            u64 run = MIN((image + 1) * inner, begin + length) - i;
            u64 at = i + (image * (channels - 1) + channel) * inner;
            for (u64 j = 0; j < run; j += WIDE) {
                u32 width = (u32)MIN(run - j, WIDE);
                for (u32 q = 0; q < width && round == 0; q += 64 / sizeof(*x)) {
                    PREFETCH(x + MIN(at + j + q + ahead, channels * n - 1));
                }
                EACH(l, width, WIDE, ACC d = LOAD(x, at + j + l) - shift - mean; s[l] += round == 0 ? d : d * d;)
            }
            i += run;
        }
        for (u32 w = WIDE / 2; w > 0; w /= 2) {
            for (u32 l = 0; l < w; l++) {
                s[l] += s[l + w];
            }
        }
        if (round == 0) {
            mean = s[0] / (ACC)length;
        }
    }
    stats[flat] = mean;
    stats[channels * parts + flat] = s[0];
}

/* One work-item per channel joins its parts (Chan, Golub, LeVeque 1979): mean distance, 1 / sqrt(variance + epsilon), mean
   and variance to moments[0..4, channel]. */
KERNEL_WG(stats_join, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const ACC *RESTRICT stats, GLOBAL ACC *RESTRICT moments, u64 channels, u64 inner, u64 n,
 u64 segment, u64 parts, ACC epsilon) {
    u64 channel = FLAT_GRP() * GROUP + LID(0);
    if (channel < channels) {
        ACC mean = stats[channel * parts];
        ACC squares = stats[(channels + channel) * parts];
        if (parts > 1) {
            ACC s = (ACC)0;
            for (u64 p = 0; p < parts; p++) {
                u64 length = MIN(n - p * segment, segment);
                s += stats[channel * parts + p] * (ACC)length;
            }
            mean = s / (ACC)n;
            squares = (ACC)0;
            for (u64 p = 0; p < parts; p++) {
                u64 length = MIN(n - p * segment, segment);
                ACC d = stats[channel * parts + p] - mean;
                squares += stats[(channels + channel) * parts + p] + d * d * (ACC)length;
            }
        }
        ACC variance = squares / (ACC)n;
        moments[channel] = mean;
        moments[channels + channel] = (ACC)1 / sqrt(variance + epsilon);
        moments[2 * channels + channel] = shift_of(LOAD(x, channel * inner)) + mean;
        moments[3 * channels + channel] = variance;
    }
}

/* What layernorm stores of the moments. */
KERNEL_WG(store_layer, GROUP, 1, 1)
(GLOBAL const ACC *RESTRICT moments, GLOBAL T *RESTRICT mean, GLOBAL T *RESTRICT rstd, u64 channels) {
    u64 i = FLAT_GRP() * GROUP + LID(0);
    if (i < channels) {
        STORE(mean, i, moments[2 * channels + i]);
        STORE(rstd, i, moments[channels + i]);
    }
}

/* What batchnorm stores of them; running statistics keep `keep` of what they were and take `take` of what is new. */
KERNEL_WG(store_batch, GROUP, 1, 1)
(GLOBAL const ACC *RESTRICT moments, GLOBAL T *RESTRICT mean, GLOBAL T *RESTRICT variance, GLOBAL T *RESTRICT running_mean,
 GLOBAL T *RESTRICT running_variance, u64 channels, ACC keep, ACC take) {
    u64 i = FLAT_GRP() * GROUP + LID(0);
    if (i < channels) {
        ACC m = moments[2 * channels + i];
        ACC v = moments[3 * channels + i];
        STORE(mean, i, m);
        STORE(variance, i, v);
        STORE(running_mean, i, keep * LOAD(running_mean, i) + take * m);
        STORE(running_variance, i, keep * LOAD(running_variance, i) + take * v);
    }
}

/* y = (x - mean) * rstd * gamma + beta, over rows of n: gamma and beta belong to columns, moments to rows. */
KERNEL_WG(apply_layer, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const ACC *RESTRICT moments, GLOBAL const T *RESTRICT gamma,
 GLOBAL const T *RESTRICT beta, GLOBAL T *RESTRICT y, u64 rows, u64 n) {
    u64 i = FLAT_GRP() * GROUP + LID(0);
    if (i < rows * n) {
        u64 row = i / n;
        u64 column = i - row * n;
        ACC d = LOAD(x, i) - shift_of(LOAD(x, row * n)) - moments[row];
        STORE(y, i, d * moments[rows + row] * LOAD(gamma, column) + LOAD(beta, column));
    }
}

/* The same over [a, channels, inner], `total` elements: everything belongs to channels. */
KERNEL_WG(apply_batch, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const ACC *RESTRICT moments, GLOBAL const T *RESTRICT gamma,
 GLOBAL const T *RESTRICT beta, GLOBAL T *RESTRICT y, u64 total, u64 channels, u64 inner) {
    u64 i = FLAT_GRP() * GROUP + LID(0);
    if (i < total) {
        u64 channel = i / inner % channels;
        ACC d = LOAD(x, i) - shift_of(LOAD(x, channel * inner)) - moments[channel];
        STORE(y, i, d * moments[channels + channel] * LOAD(gamma, channel) + LOAD(beta, channel));
    }
}

/* The same with given statistics. */
KERNEL_WG(batchnorm_infer, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const T *RESTRICT gamma, GLOBAL const T *RESTRICT beta, GLOBAL const T *RESTRICT mean,
 GLOBAL const T *RESTRICT variance, GLOBAL T *RESTRICT y, u64 total, u64 channels, u64 inner, ACC epsilon) {
    u64 i = FLAT_GRP() * GROUP + LID(0);
    if (i < total) {
        u64 channel = i / inner % channels;
        ACC rstd = (ACC)1 / sqrt(LOAD(variance, channel) + epsilon);
        ACC d = LOAD(x, i) - LOAD(mean, channel);
        STORE(y, i, d * rstd * LOAD(gamma, channel) + LOAD(beta, channel));
    }
}

/* layernorm in one launch, for rows of one segment: a group takes its row through the same steps as stats_part, stats_join,
   store_layer and apply_layer, and finds it in its cache the second and third time. */
KERNEL_WG(layernorm, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const T *RESTRICT gamma, GLOBAL const T *RESTRICT beta, GLOBAL T *RESTRICT y,
 GLOBAL T *RESTRICT mean, GLOBAL T *RESTRICT rstd, u64 rows, u64 n, ACC epsilon) {
    SHARED ACC tree[GROUP];
    u32 lid = LID(0);
    u64 row = FLAT_GRP();
    if (row >= rows) return;
    u64 base = row * n;
    ACC shift = shift_of(LOAD(x, base));
    ACC part = (ACC)0;
    for (u64 j = lid; j < n; j += GROUP) {
        part += LOAD(x, base + j) - shift;
    }
    tree[lid] = part;
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            tree[lid] += tree[lid + w];
        }
        BARRIER();
    }
    ACC m = tree[0] / (ACC)n;
    /* Everyone has read the sum before the array is used again. */
    BARRIER();
    part = (ACC)0;
    for (u64 j = lid; j < n; j += GROUP) {
        ACC d = LOAD(x, base + j) - shift - m;
        part += d * d;
    }
    tree[lid] = part;
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            tree[lid] += tree[lid + w];
        }
        BARRIER();
    }
    ACC r = (ACC)1 / sqrt(tree[0] / (ACC)n + epsilon);
    for (u64 j = lid; j < n; j += GROUP) {
        ACC d = LOAD(x, base + j) - shift - m;
        STORE(y, base + j, d * r * LOAD(gamma, j) + LOAD(beta, j));
    }
    if (lid == 0) {
        STORE(mean, row, shift + m);
        STORE(rstd, row, r);
    }
}
