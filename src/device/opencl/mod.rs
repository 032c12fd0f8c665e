//! Any OpenCL 1.2+ device. The library is opened at run time by cl3 (below opencl3).
//!
//! `sys` holds handles and error codes, `probe` finds devices, `drivers` says which drivers the loader left out, `queue` runs
//! work. One context per device; objects are
//! released by OpenCL's own reference counts, so the order in which ours are dropped does not matter.
#![allow(unsafe_code)]

mod drivers;
mod facts;
mod probe;
mod queue;
mod svm;
mod sys;

#[cfg(test)]
pub(crate) use queue::leak;

use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use opencl3::command_queue::{CL_QUEUE_PROFILING_ENABLE, create_command_queue, release_command_queue};
use opencl3::context::context::{create_context, release_context};
use opencl3::device::CL_DEVICE_MEM_BASE_ADDR_ALIGN;
use opencl3::kernel::{CL_KERNEL_NUM_ARGS, create_kernel, get_kernel_data, release_kernel};
use opencl3::memory::{CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, create_buffer, release_mem_object};
use opencl3::program::{
    CL_PROGRAM_BINARIES, CL_PROGRAM_BUILD_LOG, build_program, create_program_with_binary, create_program_with_source,
    get_program_build_data, get_program_info, release_program,
};

use crate::base::{Clock, Code, DeviceInfo, Error, RealClock, Result, rng};
use crate::device::managed::Managed;
use crate::device::{
    Buffer, BuildStats, Device, Health, Kind, Ledger, ManagedUse, MemoryKind, MemoryState, Program, Queue, Source,
    next_serial, no_memory_kind,
};
use crate::kernel::source::Text;

use queue::OpenclQueue;
use sys::{Handle, Raw};

pub use probe::probe;

/// Language version of the common dialect; every full-profile driver since 2011 has it.
const OPTIONS: &std::ffi::CStr = c"-cl-std=CL1.2";

/// A device as the platform names it; valid as long as the process (root devices are never released).
#[derive(Clone, Copy)]
struct ClId(Raw);
// SAFETY: a device id is an opaque name that OpenCL lets any thread use.
unsafe impl Send for ClId {}
// SAFETY: as above.
unsafe impl Sync for ClId {}

/// What the device and its queues share.
struct Shared {
    info: DeviceInfo,
    serial: u64,
    device: ClId,
    context: Handle,
    ledger: Arc<Ledger>,
    clock: Arc<dyn Clock>,
    /// Offsets of sub-buffers must be multiples of this many bytes.
    align: u64,
    /// Bytes of live managed buffers.
    managed: Arc<Managed>,
    /// Why the device is lost, once it is.
    lost: Mutex<Option<String>>,
}

impl Shared {
    /// Bytes that managed buffers may have together.
    fn limit(&self) -> u64 {
        self.info.memory_bytes.unwrap_or(self.info.max_alloc_bytes)
    }

    /// A failed call as an error; remembers a lost device.
    fn fail(&self, call: &str, status: i32, otherwise: Code) -> Error {
        let e = sys::error(call, status, otherwise);
        if e.code().ends_context() {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.get_or_insert_with(|| e.detail().to_string());
        }
        e.device(&self.info.id)
    }
}

/// An opened OpenCL device.
struct OpenclDevice(Arc<Shared>);

/// The backend's buffer.
struct ClBuffer {
    mem: Handle,
    host: Host,
}

/// How the host reaches a buffer.
enum Host {
    /// The driver copies.
    Copied,
    /// Host memory of the driver's that both sides address; the host's side of it is reached by mapping.
    Mapped,
    /// Memory that moves, the same.
    Shared(svm::Sent),
}

/// The backend's program: one entry point.
struct ClProgram {
    /// clSetKernelArg must not run on two threads at once; the arguments are taken over when the launch is enqueued,
    /// so the lock covers no execution.
    kernel: Mutex<Handle>,
    args: u32,
    program: Arc<Handle>,
}

impl OpenclDevice {
    fn open(device: ClId, info: DeviceInfo) -> Result<Self> {
        let ledger = Ledger::new();
        let context = create_context(&[device.0], std::ptr::null(), None, std::ptr::null_mut())
            .map_err(|s| sys::error("clCreateContext", s, Code::ContextCreate))?;
        Ok(OpenclDevice(Arc::new(Shared {
            info,
            serial: next_serial(),
            device,
            context: Handle::new(context, "context", release_context, &ledger),
            ledger,
            clock: Arc::new(RealClock::new()),
            align: (sys::device_number(device.0, CL_DEVICE_MEM_BASE_ADDR_ALIGN).unwrap_or(0) / 8).max(16),
            managed: Arc::default(),
            lost: Mutex::new(None),
        })))
    }

    /// Builds a created program and takes its entry point. The second value is the compiler's log.
    fn finish(&self, raw: Raw, entry: &str) -> Result<(ClProgram, String)> {
        let s = &self.0;
        let program = Handle::new(raw, "program", release_program, &s.ledger);
        let built = build_program(program.raw(), &[s.device.0], OPTIONS, None, std::ptr::null_mut());
        let log = get_program_build_data(program.raw(), s.device.0, CL_PROGRAM_BUILD_LOG)
            .map(|bytes| String::from_utf8_lossy(&bytes).trim_matches(['\0', '\n', ' ']).to_string())
            .unwrap_or_default();
        built.map_err(|status| {
            s.fail(&format!("{entry}: clBuildProgram"), status, Code::CompileFailed).log(log.as_str())
        })?;
        let name = CString::new(entry).map_err(|_| Error::new(Code::Internal, "an entry point's name holds a zero"))?;
        let kernel = create_kernel(program.raw(), &name)
            .map_err(|status| s.fail(&format!("clCreateKernel {entry}"), status, Code::CompileFailed))?;
        let kernel = Handle::new(kernel, "kernel", release_kernel, &s.ledger);
        let args = get_kernel_data(kernel.raw(), CL_KERNEL_NUM_ARGS)
            .ok()
            .and_then(|b| b.try_into().ok())
            .map_or(0, u32::from_ne_bytes);
        Ok((ClProgram { kernel: Mutex::new(kernel), args, program: Arc::new(program) }, log))
    }

    /// Builds a text. One that fails although the compiler finds no error in it is built once more: PoCL keeps what it makes in a
    /// folder that its processes share, and one may meet what another is about to write.
    fn build_text(&self, text: &Text) -> Result<(ClProgram, String)> {
        let s = &self.0;
        let once = || {
            let raw = create_program_with_source(s.context.raw(), &[&text.text])
                .map_err(|status| s.fail("clCreateProgramWithSource", status, Code::CompileFailed))?;
            self.finish(raw, &text.entry)
        };
        once().or_else(|e| {
            let found = e.context().log.as_deref().is_some_and(|log| log.contains("error:"));
            if e.code() != Code::CompileFailed || found {
                return Err(e);
            }
            log::warn!("{e}; built once more");
            once().map(|(program, log)| (program, format!("{log}\nthe first build failed: {}", e.detail())))
        })
    }

    /// The driver's compiled form of a program. Not having one costs only time at the next start.
    fn binary(program: &Handle) -> Option<Vec<u8>> {
        // The conversion cannot panic: cl3 answers this query with one list of bytes per device.
        let all: Vec<Vec<u8>> = get_program_info(program.raw(), CL_PROGRAM_BINARIES).ok()?.into();
        all.into_iter().next().filter(|b| !b.is_empty())
    }

    /// What a cached binary must have been made from: this text by this driver for this device.
    fn key(&self, text: &Text) -> u64 {
        rng::fnv1a64(format!("{}\n{:?}\n{:016x}", self.0.info.fingerprint(), OPTIONS, text.hash()).as_bytes())
    }
}

const MAGIC: &[u8; 8] = b"gpuctlcl";

/// Puts the key and a checksum in front of a driver's binary. PoCL crashes on a truncated one, so nothing that is not
/// whole may reach a driver.
fn seal(key: u64, binary: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &key.to_le_bytes(), &rng::fnv1a64(binary).to_le_bytes(), binary].concat()
}

/// The driver's binary in sealed bytes, if it is whole and has this key.
fn unseal(key: u64, sealed: &[u8]) -> Option<&[u8]> {
    let (head, binary) = sealed.split_at_checked(24)?;
    let expected = [&MAGIC[..], &key.to_le_bytes(), &rng::fnv1a64(binary).to_le_bytes()].concat();
    (head == expected).then_some(binary)
}

impl Device for OpenclDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }
    fn serial(&self) -> u64 {
        self.0.serial
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.0.clock)
    }
    fn ledger(&self) -> &Arc<Ledger> {
        &self.0.ledger
    }
    fn memory(&self) -> MemoryState {
        // OpenCL has no query for free memory; the ledger knows what is ours.
        MemoryState { total: self.0.info.memory_bytes, free: None }
    }

    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        let s = &self.0;
        let counted = match kind {
            MemoryKind::Device | MemoryKind::Managed => Kind::Buffer,
            MemoryKind::Mapped => Kind::Pinned,
            MemoryKind::Pinned => {
                let why =
                    "OpenCL does not say whether host memory is page-locked; Mapped is what the driver allocates there";
                return Err(no_memory_kind(kind, why).device(&s.info.id));
            }
        };
        if kind == MemoryKind::Managed && !svm::has(s.device.0) {
            let why = "CL_DEVICE_SVM_CAPABILITIES has no CL_DEVICE_SVM_COARSE_GRAIN_BUFFER";
            return Err(no_memory_kind(kind, why).device(&s.info.id));
        }
        let limit = s.info.max_alloc_bytes;
        // Drivers refuse empty buffers; 16 bytes are the unit in which operands are padded.
        let size = bytes.max(1).checked_next_multiple_of(16).filter(|size| *size <= limit);
        let Some(size) = size.and_then(|size| usize::try_from(size).ok()) else {
            let why = format!("{bytes} bytes asked, CL_DEVICE_MAX_MEM_ALLOC_SIZE is {limit}");
            return Err(Error::new(Code::AllocTooLarge, why).device(&s.info.id));
        };
        if kind == MemoryKind::Managed {
            return Ok(Buffer::new(svm::alloc(s, size)?, bytes, s.serial, s.ledger.enter(counted, bytes)));
        }
        let (host, more) = match kind {
            MemoryKind::Mapped => (Host::Mapped, CL_MEM_ALLOC_HOST_PTR),
            _ => (Host::Copied, 0),
        };
        let flags = CL_MEM_READ_WRITE | more;
        // SAFETY: no host pointer is given, so the flags have no further requirement; the context is alive.
        let raw = unsafe { create_buffer(s.context.raw(), flags, size, std::ptr::null_mut()) }
            .map_err(|status| s.fail(&format!("clCreateBuffer of {size} bytes"), status, Code::OutOfDeviceMemory))?;
        let buffer = ClBuffer { mem: Handle::new(raw, "buffer", release_mem_object, &s.ledger), host };
        Ok(Buffer::new(buffer, bytes, s.serial, s.ledger.enter(counted, bytes)))
    }

    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        let s = &self.0;
        let text = match source {
            Source::Text(text) if s.info.takes(text.lang) => text,
            _ => {
                return Err(Error::new(Code::FeatureUnsupported, "OpenCL takes OpenCL C only").device(&s.info.id));
            }
        };
        let start = Instant::now();
        let key = self.key(text);
        let from_cache = cached.and_then(|bytes| unseal(key, bytes)).and_then(|bytes| {
            // SAFETY: the device belongs to the context; the bytes are what this driver gave for this device, unchanged.
            let raw = unsafe { create_program_with_binary(s.context.raw(), &[s.device.0], &[bytes]) };
            raw.ok().and_then(|raw| self.finish(raw, &text.entry).ok())
        });
        let used_cache = from_cache.is_some();
        let (program, mut log) = match from_cache {
            Some(done) => done,
            None => self.build_text(text)?,
        };
        if cached.is_some() && !used_cache {
            log.push_str("\nthe cached binary was refused; built from source");
        }
        let stats = BuildStats { seconds: start.elapsed().as_secs_f64(), from_cache: used_cache, log };
        let handle = Arc::clone(&program.program);
        let ticket = s.ledger.enter(Kind::Program, 0);
        // PoCL compiles every kernel of the text for this query, 200 to 500 ms a program: only who asks pays.
        Ok(Program::new(program, s.serial, ticket, None, stats)
            .with_binary(move || Self::binary(&handle).map(|b| seal(key, &b))))
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let s = &self.0;
        // The 1.x call: the one with a property list is missing from 1.2 drivers.
        // SAFETY: the device belongs to the context.
        let raw = unsafe { create_command_queue(s.context.raw(), s.device.0, CL_QUEUE_PROFILING_ENABLE) }
            .map_err(|status| s.fail("clCreateCommandQueue", status, Code::LaunchFailed))?;
        let handle = Handle::new(raw, "queue", release_command_queue, &s.ledger);
        Ok(Box::new(OpenclQueue::new(Arc::clone(s), handle)))
    }

    fn managed(&self) -> Option<ManagedUse> {
        let s = &self.0;
        svm::has(s.device.0).then(|| s.managed.now(s.limit()))
    }

    fn oversubscribe(&self) -> bool {
        let has = svm::has(self.0.device.0);
        if has {
            self.0.managed.lift();
        }
        has
    }

    fn health(&self) -> Health {
        let lost = self.0.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone().map_or(Health::Usable, Health::Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_binaries_of_the_same_key_are_opened() {
        let sealed = seal(7, b"binary");
        assert_eq!(unseal(7, &sealed), Some(&b"binary"[..]));
        assert_eq!(unseal(8, &sealed), None, "another text or driver");
        for cut in 0..sealed.len() {
            assert_eq!(unseal(7, &sealed[..cut]), None, "{cut}");
        }
        for at in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 1;
            assert_eq!(unseal(7, &bad), None, "{at}");
        }
    }
}
