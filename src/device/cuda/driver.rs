//! The driver API with its dangers taken out: which symbols must exist, contexts made current, errors typed, and owners
//! of memory, events and modules that release what they hold.
//!
//! Invariants: [`missing_symbols`] is asked before anything else, since cudarc panics when a symbol is missing; every
//! call runs with the device's primary context current and leaves the thread's own context as it was; the first error
//! that poisons the context is kept, and everything after it fails with its text.

// Calls into the driver; each block says what makes it sound.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{CStr, CString, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::sys::{self, CUresult};

use crate::base::api::Api;
use crate::base::{Code, Error, Result};
use crate::device::managed::Managed;
use crate::device::{Kind, Ledger, Ticket};

use super::ordered::Ordered;

/// Functions of the driver that gpuctl calls. All are in CUDA 11.0 and later.
pub(super) const REQUIRED: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyAsync",
    "cuMemsetD32Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventElapsedTime",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncGetAttribute",
    "cuLaunchKernel",
];

/// Functions that are used where the driver has them, beside those of `ordered`, `graph` and `moves`; [`has_symbol`] is asked
/// each time.
#[cfg(test)]
const OPTIONAL: &[&str] = &["cuFuncGetParamInfo", "cuDeviceGetUuid_v2"];

/// True if the driver's library can be opened at all.
pub(super) fn library_present() -> bool {
    // SAFETY: opens and closes NVIDIA's library by its own name; its initialisers may run in any process.
    unsafe { sys::is_culib_present() }
}

/// File names under which cudarc looks for the driver.
pub(super) fn library_names() -> Vec<String> {
    let mut all = cudarc::get_lib_name_candidates("cuda");
    all.extend(cudarc::get_lib_name_candidates("nvcuda"));
    let mut seen = std::collections::HashSet::new();
    all.retain(|n| seen.insert(n.clone()));
    all
}

/// True if the driver has the function. Only after [`library_present`] said true (cudarc panics otherwise).
pub(super) fn has_symbol(name: &str) -> bool {
    // SAFETY: the address is only compared with nothing; no call is made through it.
    unsafe { sys::culib().get::<*const c_void>(name) }.is_ok()
}

/// Functions that an old driver lacks.
pub(super) fn missing_symbols() -> Vec<&'static str> {
    REQUIRED.iter().copied().filter(|n| !has_symbol(n)).collect()
}

/// `CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected`.
pub(super) fn describe(rc: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut p = ptr::null();
        // SAFETY: `p` lives through the call; the driver sets it to a static string or null.
        let rc = unsafe { get(rc, &raw mut p) };
        if rc != CUresult::CUDA_SUCCESS || p.is_null() {
            return None;
        }
        // SAFETY: not null, static and ending in NUL.
        Some(unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned())
    };
    let known = || Api::Cuda.find(rc as i32).map_or("a status that gpuctl does not know", |r| r.name).to_string();
    let name = text(sys::cuGetErrorName).unwrap_or_else(known);
    match text(sys::cuGetErrorString) {
        Some(why) => format!("{name} ({}): {why}", rc as u32),
        None => format!("{name} ({})", rc as u32),
    }
}

/// A failed call as an error, in the driver's own words; `default` is what a failure of the call means in general.
fn failed(rc: CUresult, what: &str, default: Code) -> Error {
    let number = rc as i32;
    Error::new(Api::Cuda.code(number, default), format!("{what}: {}", describe(rc))).status(Api::Cuda.status(number))
}

/// The result as an error, for calls outside of a context.
pub(super) fn plain(rc: CUresult, what: &str) -> Result<()> {
    if rc == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(failed(rc, what, Code::Internal))
}

/// A device's primary context, shared with everything else in the process that uses the device (cuBLAS, PyTorch).
pub(super) struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    poison: OnceLock<String>,
    pub(super) ledger: Arc<Ledger>,
    /// Memory in the order of a stream, where the driver has that.
    ordered: Option<Ordered>,
    /// Devices whose memory was asked for from here, and whether it is reached directly.
    pub(super) peers: Mutex<Vec<(sys::CUdevice, bool)>>,
    /// Bytes of live managed buffers, the most that they may have, and whether that was lifted.
    pub(super) managed: Managed,
    /// What owns the context, if that is not we.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: the driver API is thread-safe; a context handle may be made current on any number of threads at once.
unsafe impl Send for Context {}
// SAFETY: as above; the other fields are Sync themselves.
unsafe impl Sync for Context {}

/// A context that is current on this thread until the guard goes.
pub(super) struct Bound<'c>(PhantomData<(&'c Context, *const ())>);

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: `popped` lives through the call. The guard is not Send, so it pops on the thread where it pushed.
        unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
    }
}

impl Context {
    /// Retains the primary context of device number `ordinal`.
    pub(super) fn open(ordinal: c_int, ledger: Arc<Ledger>) -> Result<Arc<Context>> {
        let (mut device, mut raw) = (0, ptr::null_mut());
        // SAFETY: `device` lives through the call.
        plain(unsafe { sys::cuDeviceGet(&raw mut device, ordinal) }, "cuDeviceGet")?;
        // SAFETY: `raw` lives through the call; the device was just given by the driver.
        plain(unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device) }, "cuDevicePrimaryCtxRetain")?;
        Ok(Self::made(device, raw, ledger, None))
    }

    /// A context of the program's; `owner` keeps it alive.
    pub(super) fn given(
        device: sys::CUdevice,
        raw: sys::CUcontext,
        ledger: Arc<Ledger>,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Context> {
        Self::made(device, raw, ledger, Some(owner))
    }

    fn made(
        device: sys::CUdevice,
        raw: sys::CUcontext,
        ledger: Arc<Ledger>,
        owner: Option<Box<dyn Any + Send + Sync>>,
    ) -> Arc<Context> {
        let mut ctx = Context {
            device,
            raw,
            poison: OnceLock::new(),
            ledger,
            ordered: None,
            peers: Mutex::default(),
            managed: Managed::default(),
            owner,
        };
        // From here on dropping releases the context.
        let ordered = ctx.push().ok().and_then(|_bound| Ordered::new(device));
        ctx.ordered = ordered;
        Arc::new(ctx)
    }

    /// The device's number with the driver.
    pub(super) fn device(&self) -> sys::CUdevice {
        self.device
    }

    pub(super) fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    /// Memory in the order of a stream, where the driver has that.
    pub(super) fn ordered(&self) -> Option<&Ordered> {
        self.ordered.as_ref()
    }

    /// Whether the driver moves managed memory on request.
    pub(super) fn moves_managed(&self) -> bool {
        let mut there: c_int = 0;
        let what = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        // SAFETY: the number lives through the call.
        let rc = unsafe { sys::cuDeviceGetAttribute(&raw mut there, what, self.device) };
        rc == CUresult::CUDA_SUCCESS && there == 1
    }

    /// The error that made the context unusable, if one did.
    pub(super) fn poison(&self) -> Option<&str> {
        self.poison.get().map(String::as_str)
    }

    /// Makes the context current; fails at once if it is poisoned.
    pub(super) fn bind(&self) -> Result<Bound<'_>> {
        if let Some(why) = self.poison() {
            return Err(Error::new(Code::ContextPoisoned, format!("after an earlier error: {why}")));
        }
        self.push()
    }

    /// Makes the context current even if it is poisoned, for releases.
    fn push(&self) -> Result<Bound<'_>> {
        // SAFETY: the context is retained as long as `self` lives.
        plain(unsafe { sys::cuCtxPushCurrent_v2(self.raw) }, "cuCtxPushCurrent")?;
        Ok(Bound(PhantomData))
    }

    /// The result of a call as an error; keeps the first that poisons the context.
    pub(super) fn check(&self, rc: CUresult, what: &str, default: Code) -> Result<()> {
        if rc == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let e = failed(rc, what, default);
        if e.code().ends_context() {
            // Only the first is kept: the others follow from it.
            let _ = self.poison.set(e.detail().to_string());
        }
        Err(e)
    }

    /// Runs a release with the context current and enters a failure in the ledger; on a poisoned context every
    /// release fails, which is known already.
    pub(super) fn release(&self, what: &str, call: impl FnOnce() -> CUresult) {
        let result = self.push().and_then(|_bound| self.check(call(), what, Code::Internal));
        if let Err(e) = result
            && self.poison().is_none()
        {
            self.ledger.release_failed(e.to_string());
        }
    }

    /// Free and total bytes of the device, other processes included.
    pub(super) fn memory(&self) -> Result<(u64, u64)> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both live through the call; the context is current.
        let rc = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        self.check(rc, "cuMemGetInfo", Code::Internal)?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let (Some(ordered), Ok(_bound)) = (self.ordered.take(), self.push()) {
            ordered.destroy();
        }
        if self.owner.is_none() {
            // SAFETY: retained once in `open`; everything made in the context holds an Arc of it and is gone.
            unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }
}

/// Where memory came from, which says how it goes back.
enum Origin {
    /// cuMemAlloc.
    Device,
    /// The pool of the context.
    Ordered,
    /// cuMemHostAlloc; the host's address.
    Host(*mut c_void),
    /// The same, for kernels to address it: the host's side is touched directly.
    Mapped(*mut c_void),
    /// cuMemAllocManaged of so many bytes.
    Managed(u64),
}

/// Memory that kernels can address.
pub(super) struct Memory {
    ctx: Arc<Context>,
    /// Address for kernels and copies.
    pub(super) address: u64,
    origin: Origin,
}

// SAFETY: only addresses; the bytes behind them are touched by the driver alone.
unsafe impl Send for Memory {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Memory {}

impl Memory {
    fn of(ctx: &Arc<Context>, address: u64, origin: Origin) -> Memory {
        Memory { ctx: Arc::clone(ctx), address, origin }
    }

    /// Device memory of `bytes` bytes, not 0.
    pub(super) fn device(ctx: &Arc<Context>, bytes: usize) -> Result<Memory> {
        let _bound = ctx.bind()?;
        if let Some(ordered) = ctx.ordered() {
            return Ok(Memory::of(ctx, ordered.alloc(ctx, bytes)?, Origin::Ordered));
        }
        let mut address = 0;
        // SAFETY: `address` lives through the call; the context is current.
        let rc = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
        ctx.check(rc, "cuMemAlloc", Code::Internal)?;
        Ok(Memory::of(ctx, address, Origin::Device))
    }

    /// Page-locked host memory of `bytes` bytes, not 0, that the device reads and writes directly. `mapped`: for kernels.
    pub(super) fn host(ctx: &Arc<Context>, bytes: usize, mapped: bool) -> Result<Memory> {
        let _bound = ctx.bind()?;
        let mut host = ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: `host` lives through the call; the context is current.
        let rc = unsafe { sys::cuMemHostAlloc(&raw mut host, bytes, flags) };
        if rc == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Error::new(Code::OutOfHostMemory, format!("cuMemHostAlloc: {}", describe(rc)))
                .status(Api::Cuda.status(rc as i32)));
        }
        ctx.check(rc, "cuMemHostAlloc", Code::Internal)?;
        // From here on dropping releases it.
        let mut memory = Memory::of(ctx, 0, if mapped { Origin::Mapped(host) } else { Origin::Host(host) });
        // SAFETY: `host` was just allocated as mapped; the address lives through the call.
        let rc = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut memory.address, host, 0) };
        ctx.check(rc, "cuMemHostGetDevicePointer", Code::Internal)?;
        Ok(memory)
    }

    /// Managed memory of `bytes` bytes, not 0: it moves between host and device on demand. `limit`: bytes that all of it
    /// together may have, unless that was lifted.
    pub(super) fn managed(ctx: &Arc<Context>, bytes: usize, limit: u64) -> Result<Memory> {
        let _bound = ctx.bind()?;
        ctx.managed.enter(bytes as u64, limit)?;
        let mut address = 0;
        let attach = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32;
        // SAFETY: `address` lives through the call; the context is current.
        let rc = unsafe { sys::cuMemAllocManaged(&raw mut address, bytes, attach) };
        ctx.check(rc, "cuMemAllocManaged", Code::Internal).inspect_err(|_| ctx.managed.leave(bytes as u64))?;
        Ok(Memory::of(ctx, address, Origin::Managed(bytes as u64)))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// True for page-locked host memory.
    pub(super) fn is_pinned(&self) -> bool {
        matches!(self.origin, Origin::Host(_) | Origin::Mapped(_))
    }

    /// The host's address of memory whose host's side is touched directly.
    pub(super) fn mapped(&self) -> Option<*mut u8> {
        match self.origin {
            Origin::Mapped(host) => Some(host.cast()),
            _ => None,
        }
    }

    pub(super) fn is_managed(&self) -> bool {
        matches!(self.origin, Origin::Managed(_))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let (ctx, address) = (&self.ctx, self.address);
        match self.origin {
            Origin::Host(host) | Origin::Mapped(host) => {
                // SAFETY: allocated by cuMemHostAlloc, released once; queues keep buffers of unfinished work alive.
                ctx.release("cuMemFreeHost", || unsafe { sys::cuMemFreeHost(host) });
            }
            Origin::Ordered => ctx.release("cuMemFreeAsync", || {
                // Memory of the pool holds the context, and the context its pool.
                ctx.ordered().map_or(CUresult::CUDA_SUCCESS, |o| o.free(address))
            }),
            // SAFETY: allocated by cuMemAlloc, released once; queues keep buffers of unfinished work alive.
            Origin::Device => ctx.release("cuMemFree", || unsafe { sys::cuMemFree_v2(address) }),
            Origin::Managed(bytes) => {
                // SAFETY: allocated by cuMemAllocManaged, released once; queues keep buffers of unfinished work alive.
                ctx.release("cuMemFree", || unsafe { sys::cuMemFree_v2(address) });
                ctx.managed.leave(bytes);
            }
        }
    }
}

/// An event with a time stamp.
pub(super) struct Event {
    ctx: Arc<Context>,
    pub(super) raw: sys::CUevent,
    _ticket: Ticket,
}

// SAFETY: the driver API is thread-safe; an event may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A new event; the context must be current.
    pub(super) fn new(ctx: &Arc<Context>) -> Result<Event> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` lives through the call. Flags 0: with time stamps, waited for by polling.
        ctx.check(unsafe { sys::cuEventCreate(&raw mut raw, 0) }, "cuEventCreate", Code::Internal)?;
        Ok(Event { ctx: Arc::clone(ctx), raw, _ticket: ctx.ledger.enter(Kind::Event, 0) })
    }

    /// True if everything before the record is done. The context must be current.
    pub(super) fn done(&self) -> Result<bool> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.raw) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            rc => self.ctx.check(rc, "cuEventQuery", Code::LaunchFailed).map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by cuEventCreate, released once; the driver keeps it while a record is pending.
        self.ctx.release("cuEventDestroy", || unsafe { sys::cuEventDestroy_v2(self.raw) });
    }
}

/// A loaded module with its one entry point.
pub(super) struct Module {
    ctx: Arc<Context>,
    raw: sys::CUmodule,
    pub(super) function: sys::CUfunction,
    /// Sizes of the entry's parameters in bytes, where the driver can tell (12.4 and later).
    pub(super) parameters: Option<Vec<usize>>,
    /// Registers per thread, local memory per thread and static shared memory in bytes, largest group.
    pub(super) attributes: [u32; 4],
}

// SAFETY: the driver API is thread-safe; modules and functions may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above; nothing is changed after loading.
unsafe impl Sync for Module {}

impl Module {
    /// Loads an image and finds its entry.
    ///
    /// # Safety
    /// The image must be a whole cubin or PTX that ends in NUL: the driver is given no length.
    pub(super) unsafe fn load(ctx: &Arc<Context>, image: &[u8], entry: &str) -> Result<Module> {
        let name = CString::new(entry).map_err(|_| Error::new(Code::Internal, "the entry's name holds a NUL byte"))?;
        let _bound = ctx.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the caller vouches for the image, so the driver reads only inside; it copies what it needs.
        let rc = unsafe { sys::cuModuleLoadData(&raw mut raw, image.as_ptr().cast()) };
        ctx.check(rc, "cuModuleLoadData", Code::CompileFailed)?;
        let mut module =
            Module { ctx: Arc::clone(ctx), raw, function: ptr::null_mut(), parameters: None, attributes: [0; 4] };
        // SAFETY: the module is loaded; the name ends in NUL and lives through the call.
        let rc = unsafe { sys::cuModuleGetFunction(&raw mut module.function, raw, name.as_ptr()) };
        ctx.check(rc, &format!("cuModuleGetFunction({entry})"), Code::CompileFailed)?;
        use sys::CUfunction_attribute as A;
        for (slot, attribute) in [
            A::CU_FUNC_ATTRIBUTE_NUM_REGS,
            A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        ]
        .into_iter()
        .enumerate()
        {
            let mut value = 0;
            // SAFETY: the function belongs to the loaded module; `value` lives through the call.
            let rc = unsafe { sys::cuFuncGetAttribute(&raw mut value, attribute, module.function) };
            ctx.check(rc, "cuFuncGetAttribute", Code::Internal)?;
            module.attributes[slot] = value.max(0) as u32;
        }
        module.parameters = module.parameter_sizes();
        Ok(module)
    }

    fn parameter_sizes(&self) -> Option<Vec<usize>> {
        if !has_symbol("cuFuncGetParamInfo") {
            return None;
        }
        let mut sizes = Vec::new();
        loop {
            let (mut offset, mut size) = (0usize, 0usize);
            // SAFETY: the function is loaded; both numbers live through the call. The symbol was looked up above.
            let rc = unsafe { sys::cuFuncGetParamInfo(self.function, sizes.len(), &raw mut offset, &raw mut size) };
            match rc {
                CUresult::CUDA_SUCCESS if sizes.len() < 64 => sizes.push(size),
                // The documented end: an index behind the last parameter.
                CUresult::CUDA_ERROR_INVALID_VALUE => return Some(sizes),
                _ => return None,
            }
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once; queues keep programs of unfinished work alive.
        self.ctx.release("cuModuleUnload", || unsafe { sys::cuModuleUnload(self.raw) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cudarc panics when it calls a function that the driver lacks, so every one that is called must be looked up.
    #[test]
    fn every_driver_function_called_is_looked_up_first() {
        let sources = [
            include_str!("driver.rs"),
            include_str!("queue.rs"),
            include_str!("mod.rs"),
            include_str!("ordered.rs"),
            include_str!("graph.rs"),
            include_str!("moves.rs"),
        ];
        let mut called = std::collections::BTreeSet::new();
        for source in sources {
            for part in source.split("sys::cu").skip(1) {
                let name: String = part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                if name.starts_with(|c: char| c.is_ascii_uppercase()) {
                    called.insert(format!("cu{name}"));
                }
            }
        }
        assert!(called.len() > 20, "{called:?}");
        let own: Vec<&str> = [
            crate::device::cuda::ordered::SYMBOLS.as_slice(),
            &crate::device::cuda::graph::SYMBOLS,
            &crate::device::cuda::moves::SYMBOLS,
        ]
        .concat();
        let known: std::collections::BTreeSet<String> =
            REQUIRED.iter().chain(OPTIONAL).chain(&own).map(|s| s.to_string()).collect();
        assert_eq!(called, known);
    }

    /// Names of all variants; the compiler fails where the enum has one more.
    macro_rules! variants {
        ($($name:ident)*) => {{
            fn complete(rc: CUresult) {
                match rc {
                    CUresult::CUDA_SUCCESS => {}
                    $(CUresult::$name => {})*
                }
            }
            complete(CUresult::CUDA_SUCCESS);
            [$((CUresult::$name as i32, stringify!($name))),*]
        }};
    }

    /// Each constant of the header of CUDA 12.8 has its row with its name; rows that it lacks are of later headers.
    #[test]
    fn the_table_is_the_header() {
        let header = variants! {
            CUDA_ERROR_INVALID_VALUE
            CUDA_ERROR_OUT_OF_MEMORY
            CUDA_ERROR_NOT_INITIALIZED
            CUDA_ERROR_DEINITIALIZED
            CUDA_ERROR_PROFILER_DISABLED
            CUDA_ERROR_PROFILER_NOT_INITIALIZED
            CUDA_ERROR_PROFILER_ALREADY_STARTED
            CUDA_ERROR_PROFILER_ALREADY_STOPPED
            CUDA_ERROR_STUB_LIBRARY
            CUDA_ERROR_DEVICE_UNAVAILABLE
            CUDA_ERROR_NO_DEVICE
            CUDA_ERROR_INVALID_DEVICE
            CUDA_ERROR_DEVICE_NOT_LICENSED
            CUDA_ERROR_INVALID_IMAGE
            CUDA_ERROR_INVALID_CONTEXT
            CUDA_ERROR_CONTEXT_ALREADY_CURRENT
            CUDA_ERROR_MAP_FAILED
            CUDA_ERROR_UNMAP_FAILED
            CUDA_ERROR_ARRAY_IS_MAPPED
            CUDA_ERROR_ALREADY_MAPPED
            CUDA_ERROR_NO_BINARY_FOR_GPU
            CUDA_ERROR_ALREADY_ACQUIRED
            CUDA_ERROR_NOT_MAPPED
            CUDA_ERROR_NOT_MAPPED_AS_ARRAY
            CUDA_ERROR_NOT_MAPPED_AS_POINTER
            CUDA_ERROR_ECC_UNCORRECTABLE
            CUDA_ERROR_UNSUPPORTED_LIMIT
            CUDA_ERROR_CONTEXT_ALREADY_IN_USE
            CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
            CUDA_ERROR_INVALID_PTX
            CUDA_ERROR_INVALID_GRAPHICS_CONTEXT
            CUDA_ERROR_NVLINK_UNCORRECTABLE
            CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            CUDA_ERROR_JIT_COMPILATION_DISABLED
            CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
            CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC
            CUDA_ERROR_CONTAINED
            CUDA_ERROR_INVALID_SOURCE
            CUDA_ERROR_FILE_NOT_FOUND
            CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND
            CUDA_ERROR_SHARED_OBJECT_INIT_FAILED
            CUDA_ERROR_OPERATING_SYSTEM
            CUDA_ERROR_INVALID_HANDLE
            CUDA_ERROR_ILLEGAL_STATE
            CUDA_ERROR_LOSSY_QUERY
            CUDA_ERROR_NOT_FOUND
            CUDA_ERROR_NOT_READY
            CUDA_ERROR_ILLEGAL_ADDRESS
            CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
            CUDA_ERROR_LAUNCH_TIMEOUT
            CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING
            CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
            CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
            CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE
            CUDA_ERROR_CONTEXT_IS_DESTROYED
            CUDA_ERROR_ASSERT
            CUDA_ERROR_TOO_MANY_PEERS
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
            CUDA_ERROR_HARDWARE_STACK_ERROR
            CUDA_ERROR_ILLEGAL_INSTRUCTION
            CUDA_ERROR_MISALIGNED_ADDRESS
            CUDA_ERROR_INVALID_ADDRESS_SPACE
            CUDA_ERROR_INVALID_PC
            CUDA_ERROR_LAUNCH_FAILED
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
            CUDA_ERROR_TENSOR_MEMORY_LEAK
            CUDA_ERROR_NOT_PERMITTED
            CUDA_ERROR_NOT_SUPPORTED
            CUDA_ERROR_SYSTEM_NOT_READY
            CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
            CUDA_ERROR_MPS_CONNECTION_FAILED
            CUDA_ERROR_MPS_RPC_FAILURE
            CUDA_ERROR_MPS_SERVER_NOT_READY
            CUDA_ERROR_MPS_MAX_CLIENTS_REACHED
            CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED
            CUDA_ERROR_MPS_CLIENT_TERMINATED
            CUDA_ERROR_CDP_NOT_SUPPORTED
            CUDA_ERROR_CDP_VERSION_MISMATCH
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            CUDA_ERROR_STREAM_CAPTURE_MERGE
            CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            CUDA_ERROR_STREAM_CAPTURE_UNJOINED
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            CUDA_ERROR_CAPTURED_EVENT
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
            CUDA_ERROR_TIMEOUT
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
            CUDA_ERROR_EXTERNAL_DEVICE
            CUDA_ERROR_INVALID_CLUSTER_SIZE
            CUDA_ERROR_FUNCTION_NOT_LOADED
            CUDA_ERROR_INVALID_RESOURCE_TYPE
            CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
            CUDA_ERROR_KEY_ROTATION
            CUDA_ERROR_UNKNOWN
        };
        for (number, name) in header {
            assert_eq!(Api::Cuda.find(number).map(|r| r.name), Some(name), "{number}");
        }
        let later = Api::Cuda.rows().iter().filter(|r| !header.iter().any(|h| Some(h.0) == r.number));
        let later: Vec<_> = later.filter_map(|r| r.number).collect();
        assert_eq!(later, [36, 47, 227, 917, 918, 919]);
    }
}
