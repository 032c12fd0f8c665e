/* y[i] = x[i] in another number type. CONVERT(v) is the pair's expression (see kernel/plan_cast.rs); T and OUT are the
   storage, ACC what LOAD gives. ITEMS elements per work-item, a group's width apart. */

/* To integers of LEAST..MOST; LOW and HIGH are LEAST and MOST + 1, which every float type holds or rounds to itself. C
   leaves conversions out of range undefined, so they are not reached. */
#define SATURATE(v) (IS_NAN(v) ? (OUT)0 : (v) >= (ACC)HIGH ? (OUT)MOST : (v) < (ACC)LOW ? (OUT)LEAST : (OUT)(v))

KERNEL_WG(convert, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL OUT *RESTRICT y, u64 n) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            ACC v = LOAD(x, i);
            STORE_OUT(y, i, CONVERT(v));
        }
    }
}
