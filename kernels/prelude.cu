// Names of the common C dialect, in CUDA C++. kernels/prelude.cl gives the same names to OpenCL C; a test compares them.
// Needs no header: a user's machine may have only the driver and NVRTC. No fast-math flag or intrinsic anywhere.

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#define KERNEL(name) extern "C" __global__ void name
#define KERNEL_WG(name, x, y, z) extern "C" __global__ void __launch_bounds__((x) * (y) * (z)) name
#define FUNCTION static __device__ __forceinline__
#define GLOBAL
#define LOCAL
#define CONSTANT const
#define SHARED __shared__
#define RESTRICT __restrict__
#define BARRIER() __syncthreads()

// Indices of the work-item and its group as u32; d is 0, 1 or 2 and folds.
__device__ __forceinline__ u32 prelude_axis(uint3 v, int d) { return d == 0 ? v.x : d == 1 ? v.y : v.z; }
__device__ __forceinline__ u32 prelude_axis(dim3 v, int d) { return d == 0 ? v.x : d == 1 ? v.y : v.z; }
#define LID(d) prelude_axis(threadIdx, d)
#define GRP(d) prelude_axis(blockIdx, d)
#define LSZ(d) prelude_axis(blockDim, d)
#define NGRP(d) prelude_axis(gridDim, d)
// Number of the group when groups are spread over x and y.
#define FLAT_GRP() ((u64)GRP(1) * NGRP(0) + GRP(0))

// Compare-and-swap on a u32 in global memory; gives the old value.
#define ATOMIC_CAS(p, old, new) atomicCAS((p), (old), (new))

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

// OWN: how many elements a work-item visits, a group's width apart from `first` on: a number that compilers unroll by.
// WITHIN: whether one of them is below n.
#define OWN(first, n) ITEMS
#define WITHIN(i, n) ((i) < (n))

// Asks for the memory at an address that will soon be read.
#define PREFETCH(p) asm volatile("prefetch.global.L2 [%0];" ::"l"(p))

// Only processors are told what to read ahead.
#define READ_AHEAD(p, at, count, end)

// Stores a value past the caches: a hint, which only processors need.
#define STORE_PAST(p, v) (*(p) = (v))

#define IS_NAN(x) ((x) != (x))

// f16 and bf16 are stored as u16; arithmetic is f32. Stores round to nearest even and keep NaN.
__device__ __forceinline__ f32 prelude_from_f16(u16 h) {
    f32 v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
}
__device__ __forceinline__ u16 prelude_to_f16(f32 v) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}
__device__ __forceinline__ f32 prelude_from_bf16(u16 h) { return __uint_as_float((u32)h << 16); }
__device__ __forceinline__ u16 prelude_to_bf16(f32 v) {
    u32 bits = __float_as_uint(v);
    // Rounding could carry a NaN's payload into infinity: it keeps its upper half instead, with the quiet bit set.
    if (IS_NAN(v)) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
#define F16_LOAD(p, i) prelude_from_f16((p)[i])
#define F16_STORE(p, i, v) ((p)[i] = prelude_to_f16(v))
#define BF16_LOAD(p, i) prelude_from_bf16((p)[i])
#define BF16_STORE(p, i, v) ((p)[i] = prelude_to_bf16(v))
