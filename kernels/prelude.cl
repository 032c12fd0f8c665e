/* The common C dialect in OpenCL C 1.2. prelude.cu gives the same names to CUDA C++; kernel bodies use no other.
   T, ACC and OUT are defined after this text, so macros may name them but functions may not. */
#if defined(cl_khr_fp64) || defined(__opencl_c_fp64)
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef double f64;
#endif
typedef char i8;
typedef uchar u8;
typedef short i16;
typedef ushort u16;
typedef int i32;
typedef uint u32;
typedef long i64;
typedef ulong u64;
typedef float f32;

/* KERNEL(name)(arguments) { body }; KERNEL_WG also fixes the number of work-items per group. */
#define KERNEL(name) __kernel void name
#define KERNEL_WG(name, x, y, z) __kernel __attribute__((reqd_work_group_size(x, y, z))) void name
/* Functions of a body: FUNCTION type name(arguments) { body }. */
#define FUNCTION static inline

/* Address spaces: every pointer names its own. SHARED declares a group's array inside a kernel. */
#define GLOBAL __global
#define LOCAL __local
#define CONSTANT __constant
#define SHARED __local
#define RESTRICT restrict

/* Indices of the work-item and its group as u32; d is 0, 1 or 2. */
#define LID(d) ((u32)get_local_id(d))
#define GRP(d) ((u32)get_group_id(d))
#define LSZ(d) ((u32)get_local_size(d))
#define NGRP(d) ((u32)get_num_groups(d))
/* Number of the group when groups are spread over x and y. */
#define FLAT_GRP() ((u64)GRP(1) * NGRP(0) + GRP(0))
/* Waits for the group; writes to local memory before it are seen after it. */
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)

/* Compare-and-swap on a u32 in global memory; gives the old value. */
#define ATOMIC_CAS(p, old, new) atomic_cmpxchg((volatile __global u32 *)(p), (old), (new))

/* The smaller one; the larger one. */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* The statement for every l < count, where count <= width. Compilers make vectors of the loop whose length they know. */
#define EACH(l, count, width, statement) \
    if ((count) == (width)) { \
        for (u32 l = 0; l < (width); l++) { \
            statement \
        } \
    } else { \
        for (u32 l = 0; l + 1 < (width) && l < (count); l++) { \
            statement \
        } \
    }

/* OWN: how many of n elements a work-item visits, as u32, of its ITEMS that lie a group's width apart from `first` on.
   WITHIN: whether one that it visits is below n. A processor, which has groups of one, is given no element beyond n: behind a
   comparison of each its compilers store by masks, which take many times as long where there is no AVX-512. Elsewhere the
   number is one that compilers unroll by, and each element is compared. */
#define OWN(first, n) (GROUP != 1 ? (u32)ITEMS : (first) < (n) ? (u32)MIN((u64)ITEMS, (n) - (first)) : 0)
#define WITHIN(i, n) (GROUP == 1 || (i) < (n))

/* Hints that PoCL takes from its compiler; Oclgrind knows none of them. */
#ifdef POCL_DEVICE_ADDRESS_BITS
#define prelude_prefetch(p) __builtin_prefetch((const void *)(ulong)(p))
#define prelude_past(p, v) __builtin_nontemporal_store((v), (p))
#else
#define prelude_prefetch(p) prefetch((p), 1)
#define prelude_past(p, v) (*(p) = (v))
#endif

/* Asks for the memory at an address that will soon be read. */
#define PREFETCH(p) prelude_prefetch(p)

/* On a processor, which has groups of one, asks for `count` elements of a buffer of `end` that lie 2 KiB behind `at`: by
   itself it reads ahead only to the end of a page. */
#define READ_AHEAD(p, at, count, end) \
    for (u32 q = 0; q < (count) && GROUP == 1; q += 64 / sizeof(*(p))) { \
        PREFETCH((p) + MIN((at) + 2048 / sizeof(*(p)) + q, (end) - 1)); \
    }

/* Stores a value past the caches, at an address that is a multiple of its size: a hint for memory that is written whole and
   not soon read. */
#define STORE_PAST(p, v) prelude_past(p, v)

/* Bit test by comparison: no kernel is built with fast math. */
#define IS_NAN(x) ((x) != (x))

/* f16 and bf16 are storage (u16); arithmetic is f32. Stores round to nearest even and keep NaN. */
#define F16_LOAD(p, i) vload_half((i), (__global const half *)(p))
#define F16_STORE(p, i, v) vstore_half_rte((v), (i), (__global half *)(p))
#define BF16_LOAD(p, i) as_float((u32)(p)[i] << 16)
#define BF16_STORE(p, i, v) ((p)[i] = prelude_bf16(v))

/* Vectors at addresses that are multiples of their elements' size alone. */
typedef __attribute__((aligned(4))) float16 prelude_float16;
typedef __attribute__((aligned(4))) int16 prelude_int16;
typedef __attribute__((aligned(4))) int8 prelude_int8;
#if defined(cl_khr_fp64) || defined(__opencl_c_fp64)
typedef __attribute__((aligned(8))) double8 prelude_double8;
#endif

static inline u16 prelude_bf16(f32 v) {
    u32 bits = as_uint(v);
    u32 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    /* Adding could carry a NaN into infinity; a set quiet bit keeps it. */
    return (u16)((bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 0x40u : rounded);
}

static inline ushort16 prelude_bf16_vector(float16 v) {
    uint16 bits = as_uint16(v);
    uint16 rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return convert_ushort16((bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 0x40u : rounded);
}
