/* The empty launch: stores a token, so that a launch that never ran is noticed. */
KERNEL_WG(launch, 1, 1, 1)(GLOBAL i32 *RESTRICT y) {
    y[0] = TOKEN;
}
