/* Largest elements along the middle axis of [outer, n, inner], and their places. T is the unsigned integer of the
   element's width, K that of the comparisons: bits become keys of the same order (key), so NaN, zeros and subnormals are
   compared exactly, and a minimum is the maximum of inverted keys. FIRST: x holds bits, else keys; LAST: y gets bits,
   else keys. An axis longer than `segment` is cut into `parts`, which another launch joins. A processor takes CHUNK
   elements of each of STRETCHES of a segment in turn, since one stretch alone leaves it waiting for memory. */

/* Bits in the order of the numbers: of NaN beyond the infinities, of -0 below +0. */
FUNCTION K rank(K b) {
    K flipped = (b & SIGN) != 0 ? (K)(MASK | LIFT) : (K)LIFT;
    return b ^ flipped ^ FLIP;
}

FUNCTION K key(K b) {
    if (ONE_ZERO && (b & MAGNITUDE) == 0) {
        b = 0;
    }
    return (b & MAGNITUDE) > INFINITE ? (K)ALL : rank(b);
}

FUNCTION K bits(K k) {
    K u = k ^ FLIP;
    return (u ^ ((u & SIGN) != 0 ? (K)LIFT : (K)(MASK | LIFT))) & ALL;
}

FUNCTION K enter(T v) { return FIRST ? key((K)v) : (K)v; }
FUNCTION T leave(K k) { return (T)(LAST ? bits(k) : k); }

/* Ranks are cheaper than keys, and the largest key is that of the largest rank, unless there is a NaN: then a rank lies
   beyond LOWEST or HIGHEST, those of the infinities. Of no ranks, `top` being below `low`, it is 0, below all keys. */
FUNCTION K scan(T v) { return FIRST ? rank((K)v) : (K)v; }
FUNCTION K largest(K top, K low) {
    if (top < low) {
        return 0;
    }
    if (low < LOWEST || top > HIGHEST) {
        return ALL;
    }
    return FIRST ? key(bits(top)) : top;
}

/* inner = 1: group (row, part) stores y[row, part]. */
KERNEL_WG(extreme_rows, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 outer, u64 n, u64 segment, u64 parts) {
    SHARED K tree[GROUP];
    u32 lid = LID(0);
    u64 flat = FLAT_GRP();
    u64 row = flat / parts;
    if (row >= outer) return;
    u64 begin = (flat - row * parts) * segment;
    u64 length = MIN(n - begin, segment);
    u64 base = row * n + begin;
    /* No key is below 0, so idle work-items change nothing. */
    K best = 0;
    u64 stretch = (length + STRETCHES - 1) / STRETCHES;
    for (u64 chunk = lid; chunk < stretch; chunk += CHUNK) {
        for (u64 from = 0; from < length; from += stretch) {
            u64 end = MIN(from + MIN(chunk + CHUNK, stretch), length);
            READ_AHEAD(x, base + from + chunk, CHUNK, outer * n)
            K top = 0;
            K low = ALL;
            for (u64 i = from + chunk; i < end; i += GROUP) {
                K r = scan(x[base + i]);
                top = MAX(r, top);
                low = MIN(r, low);
            }
            best = MAX(largest(top, low), best);
        }
    }
    tree[lid] = best;
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            tree[lid] = MAX(tree[lid], tree[lid + w]);
        }
        BARRIER();
    }
    if (lid == 0) {
        y[flat] = leave(tree[0]);
    }
}

/* A work-item per outer, part and WIDE neighbours of inner stores y[outer, part, inner]. */
KERNEL_WG(extreme_columns, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 outer, u64 n, u64 inner, u64 segment, u64 parts) {
    u64 item = FLAT_GRP() * GROUP + LID(0);
    u64 strips = (inner + WIDE - 1) / WIDE;
    if (item < outer * parts * strips) {
        u64 rest = item / strips;
        u64 column = (item - rest * strips) * WIDE;
        u32 width = (u32)MIN(inner - column, WIDE);
        u64 row = rest / parts;
        u64 begin = (rest - row * parts) * segment;
        u64 end = begin + MIN(n - begin, segment);
        K best[WIDE];
        for (u32 l = 0; l < WIDE; l++) {
            best[l] = 0;
        }
        for (u64 i = begin; i < end; i++) {
            EACH(l, width, WIDE, K k = enter(x[(row * n + i) * inner + column + l]); best[l] = MAX(k, best[l]);)
        }
        EACH(l, width, WIDE, y[rest * inner + column + l] = leave(best[l]);)
    }
}

/* Place of an element: its index along the axis where FIRST, else index * behind + the place that an earlier launch
   found within the element. */
FUNCTION u32 place_of(GLOBAL const u32 *from, u64 at, u64 index, u64 behind) {
    return FIRST ? (u32)index : (u32)(index * behind) + from[at];
}

/* As extreme_rows, with the first place of the largest key: keys[row, part] and places[row, part]. Where FIRST, `from`
   is not read. */
KERNEL_WG(place_rows, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const u32 *RESTRICT from, GLOBAL T *RESTRICT keys, GLOBAL u32 *RESTRICT places,
 u64 outer, u64 n, u64 segment, u64 parts, u64 behind) {
    SHARED K tree[GROUP];
    SHARED u32 found[GROUP];
    u32 lid = LID(0);
    u64 flat = FLAT_GRP();
    u64 row = flat / parts;
    if (row >= outer) return;
    u64 begin = (flat - row * parts) * segment;
    u64 length = MIN(n - begin, segment);
    u64 base = row * n;
    K best[STRETCHES];
    u32 place[STRETCHES];
    for (u32 s = 0; s < STRETCHES; s++) {
        best[s] = 0;
        place[s] = 0xFFFFFFFFu;
    }
    u64 stretch = (length + STRETCHES - 1) / STRETCHES;
    for (u64 chunk = 0; chunk < stretch; chunk += CHUNK) {
        for (u32 s = 0; s < STRETCHES; s++) {
            u64 start = begin + s * stretch;
            u64 end = MIN(start + MIN(chunk + CHUNK, stretch), begin + length);
            /* A processor finds a chunk's largest key with vectors, and looks for its place only where the key is larger than
               all before: places ascend with i. With a chunk of one element per work-item both are one step. */
            READ_AHEAD(x, base + start + chunk, CHUNK, outer * n)
            K top = 0;
            K low = ALL;
            for (u64 i = start + chunk + lid; i < end; i += GROUP) {
                K r = scan(x[base + i]);
                top = MAX(r, top);
                low = MIN(r, low);
            }
            top = largest(top, low);
            bool settled = top <= best[s] && place[s] != 0xFFFFFFFFu;
            for (u64 i = start + chunk + lid; i < end && !settled; i += GROUP) {
                if (enter(x[base + i]) == top) {
                    best[s] = top;
                    place[s] = place_of(from, base + i, i, behind);
                    settled = true;
                }
            }
        }
    }
    for (u32 s = 1; s < STRETCHES; s++) {
        /* Later stretches have later places. */
        if (best[s] > best[0]) {
            best[0] = best[s];
            place[0] = place[s];
        }
    }
    tree[lid] = best[0];
    found[lid] = place[0];
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            K k = tree[lid + w];
            u32 at = found[lid + w];
            if (k > tree[lid] || (k == tree[lid] && at < found[lid])) {
                tree[lid] = k;
                found[lid] = at;
            }
        }
        BARRIER();
    }
    if (lid == 0) {
        keys[flat] = leave(tree[0]);
        places[flat] = found[0];
    }
}

/* As extreme_columns, with places. */
KERNEL_WG(place_columns, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL const u32 *RESTRICT from, GLOBAL T *RESTRICT keys, GLOBAL u32 *RESTRICT places,
 u64 outer, u64 n, u64 inner, u64 segment, u64 parts, u64 behind) {
    u64 item = FLAT_GRP() * GROUP + LID(0);
    u64 strips = (inner + WIDE - 1) / WIDE;
    if (item < outer * parts * strips) {
        u64 rest = item / strips;
        u64 column = (item - rest * strips) * WIDE;
        u32 width = (u32)MIN(inner - column, WIDE);
        u64 row = rest / parts;
        u64 begin = (rest - row * parts) * segment;
        u64 end = begin + MIN(n - begin, segment);
        K best[WIDE];
        u32 place[WIDE];
        for (u32 l = 0; l < WIDE; l++) {
            best[l] = 0;
            place[l] = 0xFFFFFFFFu;
        }
        for (u64 i = begin; i < end; i++) {
            u64 index = (row * n + i) * inner + column;
            EACH(l, width, WIDE, K k = enter(x[index + l]);
                 u32 at = place_of(from, index + l, i, behind);
                 bool better = k > best[l] || (k == best[l] && at < place[l]);
                 best[l] = better ? k : best[l];
                 place[l] = better ? at : place[l];)
        }
        EACH(l, width, WIDE, keys[rest * inner + column + l] = leave(best[l]); places[rest * inner + column + l] = place[l];)
    }
}
