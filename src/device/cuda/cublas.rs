//! cuBLAS: its functions, and products by them.
//!
//! Found as [`super::libraries`] says; handles belong to one stream and one thread at a time.

// Calls through function pointers of a C library; each block says what makes it sound.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_longlong, c_void};
use std::path::PathBuf;
use std::ptr;

use libloading::Library as Dl;

use crate::base::api::Api;
use crate::base::{Code, DType, Error, Result};

use super::libraries::{find, symbol};

type CublasHandle = *mut c_void;
type GemmEx<I> = unsafe extern "C" fn(
    CublasHandle,
    c_int,
    c_int,
    I,
    I,
    I,
    *const c_void,
    *const c_void,
    c_int,
    I,
    *const c_void,
    c_int,
    I,
    *const c_void,
    *mut c_void,
    c_int,
    I,
    c_int,
    c_int,
) -> c_int;

/// As [`GemmEx`], each matrix followed by how far the next one of its kind is, then the number of products.
type GemmStridedBatchedEx<I> = unsafe extern "C" fn(
    CublasHandle,
    c_int,
    c_int,
    I,
    I,
    I,
    *const c_void,
    *const c_void,
    c_int,
    I,
    c_longlong,
    *const c_void,
    c_int,
    I,
    c_longlong,
    *const c_void,
    *mut c_void,
    c_int,
    I,
    c_longlong,
    I,
    c_int,
    c_int,
) -> c_int;

/// NVIDIA's matrix library.
pub(super) struct Cublas {
    /// Where it was found.
    pub(super) path: String,
    /// Its version, e.g. `12.9.1`.
    pub(super) version: String,
    create: unsafe extern "C" fn(*mut CublasHandle) -> c_int,
    destroy: unsafe extern "C" fn(CublasHandle) -> c_int,
    set_stream: unsafe extern "C" fn(CublasHandle, *mut c_void) -> c_int,
    set_math_mode: unsafe extern "C" fn(CublasHandle, c_int) -> c_int,
    gemm: GemmEx<c_int>,
    gemm_64: Option<GemmEx<i64>>,
    batched: GemmStridedBatchedEx<c_int>,
    batched_64: Option<GemmStridedBatchedEx<i64>>,
}

impl std::fmt::Debug for Cublas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cublas({} at {})", self.version, self.path)
    }
}

impl Cublas {
    /// Finds the newest cuBLAS that is not newer than CUDA `major`. The error says what was tried.
    pub(super) fn find(major: u32, folders: &[PathBuf]) -> Result<Cublas, String> {
        find("cublas", "libcublasLt.so.", major, folders, |dl, path| Cublas::open(dl, path, major))
    }

    fn open(dl: &'static Dl, path: &str, major: u32) -> Result<Cublas, String> {
        type Property = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
        // SAFETY: cublas_api.h declares `cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value)`.
        let property: Property = unsafe { symbol(dl, "cublasGetProperty") }?;
        let mut version = [0; 3];
        for (i, v) in version.iter_mut().enumerate() {
            // SAFETY: 0, 1, 2 are MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL; the int lives through the call.
            if unsafe { property(i as c_int, v) } != 0 {
                return Err("cublasGetProperty failed".into());
            }
        }
        let [a, b, c] = version;
        if a.max(0) as u32 > major {
            return Err(format!("cuBLAS {a}.{b} is newer than the driver's CUDA {major}"));
        }
        Ok(Cublas {
            path: path.to_string(),
            version: format!("{a}.{b}.{c}"),
            // SAFETY: cublasStatus_t cublasCreate_v2(cublasHandle_t *).
            create: unsafe { symbol(dl, "cublasCreate_v2") }?,
            // SAFETY: cublasStatus_t cublasDestroy_v2(cublasHandle_t).
            destroy: unsafe { symbol(dl, "cublasDestroy_v2") }?,
            // SAFETY: cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t); CUstream is the same pointer.
            set_stream: unsafe { symbol(dl, "cublasSetStream_v2") }?,
            // SAFETY: cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t); the enum is an int.
            set_math_mode: unsafe { symbol(dl, "cublasSetMathMode") }?,
            // SAFETY: cublasGemmEx with compute type and algorithm as enums, ints otherwise.
            gemm: unsafe { symbol(dl, "cublasGemmEx") }?,
            // SAFETY: the same with int64_t sizes and leading dimensions, from 12.0 on.
            gemm_64: unsafe { symbol(dl, "cublasGemmEx_64") }.ok(),
            // SAFETY: cublasGemmStridedBatchedEx: strides are long long, the number of products an int.
            batched: unsafe { symbol(dl, "cublasGemmStridedBatchedEx") }?,
            // SAFETY: the same with int64_t sizes, leading dimensions and number of products, from 12.0 on.
            batched_64: unsafe { symbol(dl, "cublasGemmStridedBatchedEx_64") }.ok(),
        })
    }
}

/// One cuBLAS handle bound to one stream; used by one thread at a time. Every call needs the stream's context current.
pub(super) struct Handle {
    cublas: &'static Cublas,
    raw: CublasHandle,
}

// SAFETY: a handle may move between threads; what is forbidden is using it from two at once, and it is not Sync.
unsafe impl Send for Handle {}

/// Arguments of row-major products of one size that lie one behind the other; A, B, C are device addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct GemmCall {
    pub(super) dtype: DType,
    pub(super) batches: u64,
    pub(super) sizes: [u64; 3],
    pub(super) trans: [bool; 2],
    pub(super) alpha: f64,
    pub(super) beta: f64,
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
}

// Numbers of cublas_api.h and library_types.h.
const OP_N: c_int = 0;
const OP_T: c_int = 1;
const COMPUTE_32F: c_int = 68;
const COMPUTE_64F: c_int = 70;
const ALGORITHM_DEFAULT: c_int = -1;
/// CUBLAS_DEFAULT_MATH (no TF32 for f32) with CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: sums of f16 and bf16
/// products stay in f32.
const MATH_MODE: c_int = 16;

impl Handle {
    /// A handle whose work goes to `stream`, a CUstream of the current context.
    ///
    /// # Safety
    /// The stream's context must be current and the stream must outlive the handle.
    pub(super) unsafe fn new(cublas: &'static Cublas, stream: *mut c_void) -> Result<Handle> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` lives through the call; the caller made the context current.
        status("cublasCreate", unsafe { (cublas.create)(&raw mut raw) })?;
        let handle = Handle { cublas, raw };
        // SAFETY: the handle is alive; the caller vouches for the stream.
        status("cublasSetStream", unsafe { (cublas.set_stream)(raw, stream) })?;
        // SAFETY: the handle is alive.
        status("cublasSetMathMode", unsafe { (cublas.set_math_mode)(raw, MATH_MODE) })?;
        Ok(handle)
    }

    /// Enqueues C = alpha op(A) op(B) + beta C for row-major matrices, as many products as the call says.
    ///
    /// cuBLAS is column-major: read so, a row-major matrix is its transpose, and C' = op(B)' op(A)' is computed by
    /// giving B first and swapping m and n; the operands' own transposition flags stay.
    ///
    /// # Safety
    /// The handle's context must be current, and the addresses must be device memory that holds the matrices until the
    /// stream has done the work.
    pub(super) unsafe fn gemm(&mut self, call: &GemmCall) -> Result<()> {
        let [m, n, k] = call.sizes;
        // cudaDataType: CUDA_R_32F 0, CUDA_R_64F 1, CUDA_R_16F 2, CUDA_R_16BF 14.
        let (data, compute) = match call.dtype {
            DType::F32 => (0, COMPUTE_32F),
            DType::F64 => (1, COMPUTE_64F),
            DType::F16 => (2, COMPUTE_32F),
            DType::BF16 => (14, COMPUTE_32F),
            other => return Err(Error::new(Code::DTypeUnsupported, format!("cuBLAS has no product of {other}"))),
        };
        let op = |t: bool| if t { OP_T } else { OP_N };
        let (op_a, op_b) = (op(call.trans[0]), op(call.trans[1]));
        let lda = if call.trans[0] { m } else { k };
        let ldb = if call.trans[1] { k } else { n };
        // alpha and beta are of the compute type and read during the call (pointer mode "host", the default).
        let f32s = [call.alpha as f32, call.beta as f32];
        let f64s = [call.alpha, call.beta];
        let (alpha, beta): (*const c_void, *const c_void) = if compute == COMPUTE_64F {
            (ptr::from_ref(&f64s[0]).cast(), ptr::from_ref(&f64s[1]).cast())
        } else {
            (ptr::from_ref(&f32s[0]).cast(), ptr::from_ref(&f32s[1]).cast())
        };
        let address = |p: u64| p as usize as *const c_void;
        let (a, b, c) = (address(call.a), address(call.b), address(call.c).cast_mut());
        // Distances of neighbours; of one product nobody reads them.
        let stride = |rows: u64, columns: u64| {
            rows.checked_mul(columns).and_then(|e| c_longlong::try_from(e).ok()).ok_or_else(|| {
                Error::new(Code::LaunchTooLarge, format!("{rows} by {columns} elements do not fit cuBLAS's long long"))
            })
        };
        let (next_a, next_b, next_c) = (stride(m, k)?, stride(k, n)?, stride(m, n)?);
        macro_rules! product {
            ($one:expr, $many:expr, $int:ty) => {{
                let int = |v: u64| {
                    <$int>::try_from(v).map_err(|_| {
                        Error::new(Code::LaunchTooLarge, format!("{v} does not fit this cuBLAS's {}", stringify!($int)))
                    })
                };
                let (ms, ns, ks, lda, ldb, count) =
                    (int(m)?, int(n)?, int(k)?, int(lda)?, int(ldb)?, int(call.batches)?);
                // SAFETY: alpha and beta point to numbers of the compute type that live through the call; leading
                // dimensions are the rows' lengths and strides those of whole matrices; the caller vouches for the
                // addresses and the context.
                unsafe {
                    if call.batches == 1 {
                        $one(
                            self.raw,
                            op_b,
                            op_a,
                            ns,
                            ms,
                            ks,
                            alpha,
                            b,
                            data,
                            ldb,
                            a,
                            data,
                            lda,
                            beta,
                            c,
                            data,
                            ns,
                            compute,
                            ALGORITHM_DEFAULT,
                        )
                    } else {
                        $many(
                            self.raw,
                            op_b,
                            op_a,
                            ns,
                            ms,
                            ks,
                            alpha,
                            b,
                            data,
                            ldb,
                            next_b,
                            a,
                            data,
                            lda,
                            next_a,
                            beta,
                            c,
                            data,
                            ns,
                            next_c,
                            count,
                            compute,
                            ALGORITHM_DEFAULT,
                        )
                    }
                }
            }};
        }
        let rc = match (self.cublas.gemm_64, self.cublas.batched_64) {
            (Some(one), Some(many)) => product!(one, many, i64),
            _ => product!((self.cublas.gemm), (self.cublas.batched), c_int),
        };
        status(if call.batches == 1 { "cublasGemmEx" } else { "cublasGemmStridedBatchedEx" }, rc)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by cublasCreate and released once; the queue makes the context current before it drops this.
        unsafe { (self.cublas.destroy)(self.raw) };
    }
}

/// A failed cuBLAS call as an error.
fn status(what: &str, rc: c_int) -> Result<()> {
    if rc == 0 { Ok(()) } else { Err(Api::Cublas.error(what, rc, Code::InvalidCall)) }
}
