/* Activations and their backward forms. EXPR(x, b) is the op's expression: x the argument (or the forward result), b the
   incoming gradient; alpha is in scope. ITEMS elements per work-item, a group's width apart, so that neighbours read
   neighbours. */

/* x, but not below -40, where the functions are zero in every dtype; NaN passes through. */
#define FLOORED(x) ((x) < (ACC)-40 ? (ACC)-40 : (x))
#define WITHIN_40(x) ((x) > (ACC)40 ? (ACC)40 : FLOORED(x))

/* 1 / (1 + e^-v). */
#define LOGISTIC(v) (((v) < (ACC)0 ? exp(v) : (ACC)1) / ((ACC)1 + exp((v) < (ACC)0 ? (v) : -(v))))

/* The standard normal distribution, and x times its density. */
#define NORMAL(x) ((ACC)0.5 * ((ACC)1 + erf((x) * (ACC)0.70710678118654752)))
#define X_DENSITY(x) ((x) * ((ACC)0.39894228040143268 * exp((ACC)-0.5 * (x) * (x))))

/* Twice the argument of gelu's tanh form, for (1 + tanh u) / 2 = 1 / (1 + e^-2u), and its derivative. */
#define TWICE(x) ((ACC)1.5957691216057308 * (x) * ((ACC)1 + (ACC)0.044715 * (x) * (x)))
#define TWICE_SLOPE(x) ((ACC)1.5957691216057308 * ((ACC)1 + (ACC)0.134145 * (x) * (x)))
#define TANH_SLOPE(x) (LOGISTIC(TWICE(x)) * ((ACC)1 + (x) * LOGISTIC(-TWICE(x)) * TWICE_SLOPE(x)))

/* y[i] = EXPR(x[i]) for i < n. */
KERNEL_WG(forward, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n, ACC alpha) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            ACC v = LOAD(x, i);
            STORE(y, i, EXPR(v, v));
        }
    }
}

/* dx[i] = EXPR(x[i], g[i]) for i < n. */
KERNEL_WG(backward, GROUP, 1, 1)
(GLOBAL const T *RESTRICT g, GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT dx, u64 n, ACC alpha) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            ACC v = LOAD(x, i);
            ACC w = LOAD(g, i);
            STORE(dx, i, EXPR(v, w));
        }
    }
}
