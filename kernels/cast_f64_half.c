/* f64 to f16 and bf16, rounded once, in f64: adding and subtracting 1.5 * 2^52 times the target's last place rounds to a
   multiple of that place, to nearest even. DIGITS and LEAST_EXPONENT are the target's. */
KERNEL_WG(convert, GROUP, 1, 1)(GLOBAL const u64 *RESTRICT x, GLOBAL OUT *RESTRICT y, u64 n) {
    u64 first = FLAT_GRP() * (GROUP * ITEMS) + LID(0);
    for (u32 j = 0; j < OWN(first, n); j++) {
        u64 i = first + j * GROUP;
        if (WITHIN(i, n)) {
            GLOBAL const f64 *number = (GLOBAL const f64 *)x;
            f64 v = number[i];
            i32 exponent = (i32)(x[i] >> 52 & 0x7FF) - 1023;
            /* Beyond 2^128 both are infinite, as f32 is. */
            if (exponent < 128) {
                i32 place = (exponent > LEAST_EXPONENT ? exponent : LEAST_EXPONENT) - (DIGITS - 1);
                f64 magic = ldexp(1.5, 52 + place);
                f64 r = (v + magic) - magic;
                v = r == 0 ? v * 0 : r;
            }
            STORE_OUT(y, i, (f32)v);
        }
    }
}
