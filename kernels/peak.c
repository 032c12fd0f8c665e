/* The probe of arithmetic. A work-item holds CHAINS chains of WIDE neighbours each, which do not wait for each other; a GPU's
   have one, a processor's as many as a vector holds. */

/* y[i] = x[i] after `steps` steps v = v * factor + term, i < n. What lies past n is computed and not stored. */
KERNEL_WG(fma_chains, GROUP, 1, 1)
(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n, u64 steps, ACC factor, ACC term) {
    u64 first = FLAT_GRP() * (GROUP * CHAINS * WIDE) + LID(0) * WIDE;
    ACC v[CHAINS * WIDE];
    for (u32 j = 0; j < CHAINS; j++) {
        for (u32 l = 0; l < WIDE; l++) {
            u64 i = first + j * (GROUP * WIDE) + l;
            v[j * WIDE + l] = i < n ? LOAD(x, i) : (ACC)0;
        }
    }
    for (u64 s = 0; s < steps; s++) {
        for (u32 j = 0; j < CHAINS * WIDE; j++) {
            v[j] = fma(v[j], factor, term);
        }
    }
    for (u32 j = 0; j < CHAINS; j++) {
        for (u32 l = 0; l < WIDE; l++) {
            u64 i = first + j * (GROUP * WIDE) + l;
            if (i < n) {
                STORE(y, i, v[j * WIDE + l]);
            }
        }
    }
}
