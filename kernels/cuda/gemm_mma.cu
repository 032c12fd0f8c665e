// C = alpha op(A) op(B) + beta C in bf16 on tensor cores (compute capability 8.0 or later), f32 accumulation.
//
// A group of 128 threads (4 warps) owns a 64x64 tile of C, each warp a 32x32 quarter of it as 2x4 products of shape
// m16n8k16. Element (i, p) of op(A) lies at a[i * a_row + p * a_col], (p, j) of op(B) at b[p * b_row + j * b_col], C is
// row-major. Tiles are numbered row by row over a grid that may be spread over x and y. beta = 0 does not read C.
// Who holds which element: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define TILE 64
#define TK 32
#define THREADS 128
#define EACH (TILE * TK / THREADS)
// Eight elements of padding: the 32 lanes' 32-bit reads of a fragment then hit 32 different banks.
#define PITCH (TK + 8)

__device__ __forceinline__ float from_bf16(u16 h) { return __uint_as_float((u32)h << 16); }

__device__ __forceinline__ u16 to_bf16(float v) {
    u32 bits = __float_as_uint(v);
    if (v != v) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Place in a tile of the e-th element that is fetched: neighbouring threads take neighbouring addresses.
__device__ __forceinline__ u32 tile_line(u32 e, bool along_k) { return along_k ? e / TK : e % TILE; }
__device__ __forceinline__ u32 tile_k(u32 e, bool along_k) { return along_k ? e % TK : e / TILE; }

// This thread's share of a tile: 64 lines (rows of op(A), columns of op(B)) by TK, zero outside of the matrix.
__device__ __forceinline__ void fetch(u16 (&r)[EACH], const u16* __restrict__ p, u64 line0, u64 lines, u64 k0, u64 k,
                                      u64 line_stride, u64 k_stride) {
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        u32 e = i * THREADS + threadIdx.x;
        u64 line = line0 + tile_line(e, k_stride == 1), at = k0 + tile_k(e, k_stride == 1);
        r[i] = line < lines && at < k ? p[line * line_stride + at * k_stride] : (u16)0;
    }
}

__device__ __forceinline__ void put(u16 (&tile)[TILE][PITCH], const u16 (&r)[EACH], u64 k_stride) {
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
        u32 e = i * THREADS + threadIdx.x;
        tile[tile_line(e, k_stride == 1)][tile_k(e, k_stride == 1)] = r[i];
    }
}

// Two neighbours along k as one register; the even column and the even pitch keep it aligned.
__device__ __forceinline__ u32 pair(const u16* p) { return *(const u32*)p; }

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_mma(const u16* __restrict__ a, const u16* __restrict__ b, u16* __restrict__ c, u64 m, u64 n, u64 k, u64 a_row,
             u64 a_col, u64 b_row, u64 b_col, float alpha, float beta) {
    __shared__ __align__(16) u16 as[TILE][PITCH];
    __shared__ __align__(16) u16 bs[TILE][PITCH];
    u64 across = (n + TILE - 1) / TILE, down = (m + TILE - 1) / TILE;
    u64 number = (u64)blockIdx.y * gridDim.x + blockIdx.x;
    if (number >= across * down) return;
    u64 row0 = number / across * TILE, col0 = number % across * TILE;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 group = lane / 4, member = lane % 4;
    u32 wrow = warp / 2 * 32, wcol = warp % 2 * 32;
    float acc[2][4][4] = {};
    u16 ra[EACH], rb[EACH];
    fetch(ra, a, row0, m, 0, k, a_row, a_col);
    fetch(rb, b, col0, n, 0, k, b_col, b_row);
    for (u64 k0 = 0; k0 < k; k0 += TK) {
        put(as, ra, a_col);
        put(bs, rb, b_row);
        __syncthreads();
        if (k0 + TK < k) {
            fetch(ra, a, row0, m, k0 + TK, k, a_row, a_col);
            fetch(rb, b, col0, n, k0 + TK, k, b_col, b_row);
        }
#pragma unroll
        for (u32 kk = 0; kk < TK; kk += 16) {
            u32 fa[2][4], fb[4][2];
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u16* p = &as[wrow + i * 16 + group][kk + member * 2];
                fa[i][0] = pair(p);
                fa[i][1] = pair(p + 8 * PITCH);
                fa[i][2] = pair(p + 8);
                fa[i][3] = pair(p + 8 * PITCH + 8);
            }
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const u16* p = &bs[wcol + j * 8 + group][kk + member * 2];
                fb[j][0] = pair(p);
                fb[j][1] = pair(p + 8);
            }
#pragma unroll
            for (u32 i = 0; i < 2; ++i)
#pragma unroll
                for (u32 j = 0; j < 4; ++j) mma(acc[i][j], fa[i], fb[j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 2; ++i)
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
#pragma unroll
            for (u32 e = 0; e < 4; ++e) {
                u64 row = row0 + wrow + i * 16 + group + e / 2 * 8;
                u64 col = col0 + wcol + j * 8 + member * 2 + e % 2;
                if (row < m && col < n) {
                    float v = alpha * acc[i][j][e];
                    if (beta != 0.0f) v += beta * from_bf16(c[row * n + col]);
                    c[row * n + col] = to_bf16(v);
                }
            }
}
