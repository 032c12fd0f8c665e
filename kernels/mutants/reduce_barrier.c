/* Known to be wrong: no barrier between filling the tree and its first level, so that a work-item may add a
   neighbour's sum before it is there. Replaces reduce.c; holds the entry `sum_rows`.
   Shapes that miss it: rows of at most GROUP / 2 elements (32 of the group of 64 that short rows get): the missing
   halves are zero anyway. On PoCL work-items run one after the other between barriers, so the upper half of every
   longer row is missing from the sum each time; on a GPU it depends on how its warps interleave. */
KERNEL_WG(sum_rows, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL OUT *RESTRICT y, u64 outer, u64 n, u64 segment, u64 parts) {
    SHARED ACC tree[GROUP];
    u32 lid = LID(0);
    u64 flat = FLAT_GRP();
    u64 row = flat / parts;
    u64 begin = (flat - row * parts) * segment;
    u64 length = row < outer ? (n - begin < segment ? n - begin : segment) : 0;
    u64 base = row * n + begin;
    tree[lid] = (ACC)0;
    BARRIER();
    ACC s = (ACC)0;
    for (u64 i = lid; i < length; i += GROUP) {
        s += LOAD(x, base + i);
    }
    tree[lid] = s;
    /* BARRIER() belongs here. The first level stands before the loop: PoCL puts barriers of its own around a loop that
       holds one, which would hide the fault. */
    if (lid < GROUP / 2) {
        tree[lid] += tree[lid + GROUP / 2];
    }
    BARRIER();
    for (u32 half_width = GROUP / 4; half_width > 0; half_width /= 2) {
        if (lid < half_width) {
            tree[lid] += tree[lid + half_width];
        }
        BARRIER();
    }
    if (lid == 0 && row < outer) {
        STORE_OUT(y, flat, tree[0]);
    }
}
