/* Writes far outside of its buffer: how a device is lost for real. `far` is an argument, so that no compiler sees it. */
KERNEL_WG(stray, 1, 1, 1)(GLOBAL u32 *RESTRICT y, u64 far) {
    y[far] = 1u;
}
