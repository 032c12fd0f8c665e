//! Memory from a pool of the driver's, in the order of a stream: neither allocating nor releasing waits for the device, as
//! cuMemAlloc and cuMemFree do.

// Calls into the driver; each block says what makes it sound.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};

use crate::base::{Code, Error, Result};
use crate::device::DEADLINE;

use super::driver::{Context, has_symbol, plain};

/// Functions of the driver since CUDA 11.2.
pub(super) const SYMBOLS: [&str; 7] = [
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolSetAttribute",
    "cuMemPoolSetAccess",
    "cuMemPoolTrimTo",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
];

/// Released memory that the driver keeps for the next allocation instead of giving it back: what lies longer is kept by
/// `engine::pool`, which knows when it is needed.
const KEPT: u64 = 64 << 20;

/// A pool of the driver's and the stream whose order it follows. Only allocations and releases are in that stream, so it is
/// idle whenever both were made; what is released was waited for by the queues that used it.
pub(super) struct Ordered {
    pool: sys::CUmemoryPool,
    stream: sys::CUstream,
}

impl Ordered {
    /// A pool on a device, if its driver has pools. The device's context must be current.
    pub(super) fn new(device: sys::CUdevice) -> Option<Ordered> {
        let mut there: c_int = 0;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        // SAFETY: the number lives through the call.
        let rc = unsafe { sys::cuDeviceGetAttribute(&raw mut there, attribute, device) };
        if rc != CUresult::CUDA_SUCCESS || there != 1 || !SYMBOLS.iter().all(|s| has_symbol(s)) {
            return None;
        }
        let made = Self::make(device);
        if let Err(e) = &made {
            log::warn!("no pool of the driver's for device {device}, memory is allocated without: {e}");
        }
        made.ok()
    }

    fn make(device: sys::CUdevice) -> Result<Ordered> {
        let properties = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device },
            win32SecurityAttributes: ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut made = Ordered { pool: ptr::null_mut(), stream: ptr::null_mut() };
        // SAFETY: both live through the call; the symbol was looked up.
        plain(unsafe { sys::cuMemPoolCreate(&raw mut made.pool, &raw const properties) }, "cuMemPoolCreate")?;
        let mut kept = KEPT;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a 64-bit number, which lives through the call.
        let set = unsafe { sys::cuMemPoolSetAttribute(made.pool, threshold, (&raw mut kept).cast()) };
        let set = plain(set, "cuMemPoolSetAttribute").and_then(|()| {
            // SAFETY: the handle lives through the call; the context is current. 1: CU_STREAM_NON_BLOCKING.
            plain(unsafe { sys::cuStreamCreate(&raw mut made.stream, 1) }, "cuStreamCreate")
        });
        if let Err(e) = set {
            // SAFETY: the pool was just made, and nothing was allocated from it.
            unsafe { sys::cuMemPoolDestroy(made.pool) };
            return Err(e);
        }
        Ok(made)
    }

    /// The address of so many bytes, ready for any stream. The context must be current.
    pub(super) fn alloc(&self, ctx: &Context, bytes: usize) -> Result<u64> {
        let mut address = 0;
        // SAFETY: the address lives through the call; pool and stream are alive.
        let mut ask = || unsafe { sys::cuMemAllocFromPoolAsync(&raw mut address, bytes, self.pool, self.stream) };
        let mut rc = ask();
        if rc == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            // What the pool keeps may be what is missing.
            // SAFETY: the pool is alive.
            unsafe { sys::cuMemPoolTrimTo(self.pool, 0) };
            rc = ask();
        }
        ctx.check(rc, "cuMemAllocFromPoolAsync", Code::Internal)?;
        // The allocation is a step of this stream, and others may begin before it otherwise.
        self.wait(ctx).inspect_err(|_| {
            // Nobody else learns the address. The release is a step behind the allocation, so that it waits for nothing.
            ctx.release("cuMemFreeAsync", || self.free(address));
        })?;
        Ok(address)
    }

    /// Waits until the stream is empty.
    fn wait(&self, ctx: &Context) -> Result<()> {
        let start = Instant::now();
        loop {
            // SAFETY: the stream is alive.
            match unsafe { sys::cuStreamQuery(self.stream) } {
                CUresult::CUDA_ERROR_NOT_READY if start.elapsed() < DEADLINE => {
                    let waited = start.elapsed() > Duration::from_micros(100);
                    if waited { std::thread::sleep(Duration::from_micros(50)) } else { std::hint::spin_loop() }
                }
                CUresult::CUDA_ERROR_NOT_READY => {
                    return Err(Error::new(Code::LaunchTimeout, "the driver's pool did not give memory in time"));
                }
                rc => return ctx.check(rc, "cuStreamQuery", Code::Internal),
            }
        }
    }

    /// Releases what [`Ordered::alloc`] gave. The context must be current.
    pub(super) fn free(&self, address: u64) -> CUresult {
        // SAFETY: allocated from this pool, released once; queues keep buffers of unfinished work alive.
        unsafe { sys::cuMemFreeAsync(address, self.stream) }
    }

    /// Lets another device reach all memory of the pool.
    pub(super) fn open_to(&self, device: sys::CUdevice) -> CUresult {
        let access = sys::CUmemAccessDesc {
            location: sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device },
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: one description, which lives through the call; the pool is alive.
        unsafe { sys::cuMemPoolSetAccess(self.pool, &raw const access, 1) }
    }

    /// Gives everything back; the context must be current. What fails now has no other owner: the context goes as well.
    pub(super) fn destroy(&self) {
        // SAFETY: made once, destroyed once; every buffer of the pool holds the context that owns it, so none is left.
        unsafe {
            sys::cuStreamDestroy_v2(self.stream);
            sys::cuMemPoolDestroy(self.pool);
        }
    }
}
