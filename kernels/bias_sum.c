/* The gradient of a bias per channel of [outer, c, inner]: a sum per channel. Channels longer than `segment` are summed in
   `parts` pieces; a second launch sums the pieces, so the order of additions never depends on timing. */

/* db[part, channel] = sum of the channel's terms part*segment .. of k = outer*inner; one work-item each, neighbours read
   neighbouring channels. */
KERNEL_WG(bias_columns, GROUP, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL OUT *RESTRICT db, u64 k, u64 c, u64 inner, u64 segment, u64 parts) {
    u64 flat = FLAT_GRP() * GROUP + LID(0);
    if (flat < parts * c) {
        u64 part = flat / c;
        u64 channel = flat % c;
        u64 t = part * segment;
        u64 end = MIN(t + segment, k);
        u64 o = t / inner;
        u64 i = t % inner;
        ACC sum = (ACC)0;
        for (; t < end; t++) {
            sum += LOAD(g, (o * c + channel) * inner + i);
            i++;
            if (i == inner) {
                i = 0;
                o++;
            }
        }
        STORE_OUT(db, flat, sum);
    }
}

/* The same with a group each: neighbours read neighbouring terms, and the group adds up in a tree. */
KERNEL_WG(bias_groups, GROUP, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL OUT *RESTRICT db, u64 k, u64 c, u64 inner, u64 segment, u64 parts) {
    SHARED ACC tree[GROUP];
    u32 lid = LID(0);
    u64 flat = FLAT_GRP();
    u64 part = flat / c;
    u64 channel = flat % c;
    /* A whole group leaves, so nobody waits for it at a barrier. */
    if (part >= parts) return;
    u64 start = part * segment;
    u64 end = MIN(start + segment, k);
    u64 o = (start + lid) / inner;
    u64 i = (start + lid) % inner;
    ACC sum = (ACC)0;
    for (u64 t = start + lid; t < end; t += GROUP) {
        sum += LOAD(g, (o * c + channel) * inner + i);
        i += GROUP;
        while (i >= inner) {
            i -= inner;
            o++;
        }
    }
    tree[lid] = sum;
    BARRIER();
    for (u32 half_width = GROUP / 2; half_width > 0; half_width /= 2) {
        if (lid < half_width) {
            tree[lid] += tree[lid + half_width];
        }
        BARRIER();
    }
    if (lid == 0) {
        STORE_OUT(db, flat, tree[0]);
    }
}
