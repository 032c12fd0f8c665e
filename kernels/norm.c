/* Row-wise normalisations. GROUP is a power of two. */

/* y[i, j] = exp(x[i, j] - top_i) / sum over row i of the same; one group per row of n >= 1. A NaN makes its row NaN, as
   does +infinity (inf - inf). The exponentials wait in y, so T must hold them exactly: T is ACC. */
KERNEL_WG(softmax, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 m, u64 n) {
    SHARED ACC tree[GROUP];
    u32 lid = LID(0);
    u64 row = FLAT_GRP();
    u64 length = row < m ? n : 0;
    u64 base = row < m ? row * n : 0;
    ACC top = LOAD(x, base);
    for (u64 j = lid; j < length; j += GROUP) {
        ACC v = LOAD(x, base + j);
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
    ACC s = (ACC)0;
    for (u64 j = lid; j < length; j += GROUP) {
        ACC e = exp(LOAD(x, base + j) - top);
        STORE(y, base + j, e);
        s += e;
    }
    tree[lid] = s;
    BARRIER();
    for (u32 w = GROUP / 2; w > 0; w /= 2) {
        if (lid < w) {
            tree[lid] += tree[lid + w];
        }
        BARRIER();
    }
    s = tree[0];
    for (u64 j = lid; j < length; j += GROUP) {
        STORE(y, base + j, LOAD(y, base + j) / s);
    }
}
