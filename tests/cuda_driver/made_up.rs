//! A made-up CUDA driver, in the host's memory: what gpuctl asks of a driver, and what it gives back, can be seen without a card.
//! `main.rs` builds it as `libcuda.so.1`, with `--cfg old` without what older drivers lack.
//!
//! Synthetic: it follows the headers' signatures and the documented order of calls, and says nothing about a real driver. Work is
//! done when it is enqueued, and there is one kernel, `increment`. A stream that was told to wait for an event is busy until it
//! was asked a few times. Each call of interest is a line in `MADE_UP_LOG`.
#![allow(non_snake_case, unused_unsafe, unused_imports, dead_code, reason = "two drivers are built of it")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::io::Write;
use std::sync::Mutex;

type Rc = c_int;
const OK: Rc = 0;
const INVALID: Rc = 1;
const NO_MEMORY: Rc = 2;
const NOT_READY: Rc = 600;
/// Bytes that a device has.
const TOTAL: usize = 1 << 24;
/// The first question after an allocation, or a copy from or to the host, of so many bytes is answered by an error.
const UNLUCKY: usize = 1296;
/// Questions until a busy stream is idle.
const BUSY: u32 = 3;

struct Alloc {
    bytes: usize,
    kind: &'static str,
    device: c_int,
    /// Where managed memory was sent.
    sent: c_int,
}

/// A launch of `increment`.
#[derive(Clone, Copy)]
struct Run(u64, u64);

#[derive(Default)]
struct State {
    allocs: BTreeMap<u64, Alloc>,
    next: u64,
    /// Live objects that are not memory, by kind.
    live: BTreeMap<&'static str, i64>,
    /// Streams that are being recorded.
    recording: BTreeMap<u64, Vec<Run>>,
    graphs: BTreeMap<u64, Vec<Run>>,
    functions: BTreeMap<u64, String>,
    reached: Vec<(c_int, c_int)>,
    current: Vec<u64>,
    /// Questions until streams are idle.
    busy: u32,
    unlucky: bool,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    f(STATE.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_with(State::default))
}

fn log(line: &str) {
    if let Some(path) = std::env::var_os("MADE_UP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let _ = file.and_then(|mut f| writeln!(f, "{line}"));
    }
}

impl State {
    fn handle(&mut self, kind: &'static str) -> u64 {
        self.next += 1;
        *self.live.entry(kind).or_default() += 1;
        0x1000 + self.next
    }

    fn gone(&mut self, kind: &'static str) -> Rc {
        *self.live.entry(kind).or_default() -= 1;
        OK
    }

    fn device(&self) -> c_int {
        self.current.last().map_or(-1, |c| (*c as c_int) - 1)
    }

    fn alloc(&mut self, bytes: usize, kind: &'static str, device: c_int) -> Result<u64, Rc> {
        let used: usize =
            self.allocs.values().filter(|a| a.device == device && a.kind != "host").map(|a| a.bytes).sum();
        if kind != "managed" && kind != "host" && used + bytes > TOTAL {
            return Err(NO_MEMORY);
        }
        let memory = vec![0xCDu128; bytes.div_ceil(16).max(1)].leak();
        let address = memory.as_mut_ptr() as u64;
        self.allocs.insert(address, Alloc { bytes, kind, device, sent: -2 });
        Ok(address)
    }

    fn free(&mut self, address: u64, kinds: &[&str]) -> Rc {
        match self.allocs.get(&address) {
            Some(a) if kinds.contains(&a.kind) => {
                self.allocs.remove(&address);
                OK
            }
            _ => INVALID,
        }
    }

    /// Whether a range lies in memory of this driver, or in none of it (the program's own).
    fn sound(&self, address: u64, bytes: usize, own: bool) -> bool {
        match self.allocs.range(..=address).next_back() {
            Some((from, a)) if address < from + a.bytes as u64 => address + bytes as u64 <= from + a.bytes as u64,
            _ => !own,
        }
    }
}

/// The answer to whether a stream or an event is done.
fn asked() -> Rc {
    with(|s| {
        if std::mem::take(&mut s.unlucky) {
            return INVALID;
        }
        let busy = s.busy > 0;
        s.busy = s.busy.saturating_sub(1);
        if busy { NOT_READY } else { OK }
    })
}

/// What a copy from or to the host does before it moves anything.
fn host_copy(name: &str, bytes: usize) {
    log(name);
    with(|s| {
        s.unlucky = bytes == UNLUCKY;
        if s.busy > 0 {
            log("a copy blocks");
        }
    });
}

unsafe fn moved(to: u64, from: u64, bytes: usize, own: [bool; 2]) -> Rc {
    if !with(|s| s.sound(to, bytes, own[0]) && s.sound(from, bytes, own[1])) {
        return INVALID;
    }
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    OK
}

unsafe fn run(r: Run) {
    for i in 0..r.1 {
        unsafe { *(r.0 as *mut u32).add(i as usize) += 1 };
    }
}

macro_rules! api {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $body:block)*) => {
        $($(#[$meta])* #[unsafe(no_mangle)] pub unsafe extern "C" fn $name($($arg: $ty),*) -> Rc { unsafe { $body } })*
    };
}

api! {
    fn cuInit(_flags: c_uint) { OK }
    fn cuDriverGetVersion(v: *mut c_int) { *v = 12080; OK }
    fn cuGetErrorName(rc: c_int, p: *mut *const c_char) { *p = if rc == NO_MEMORY { c"CUDA_ERROR_OUT_OF_MEMORY" } else { c"CUDA_ERROR_INVALID_VALUE" }.as_ptr(); OK }
    fn cuGetErrorString(_rc: c_int, p: *mut *const c_char) { *p = c"made up".as_ptr(); OK }
    fn cuDeviceGetCount(n: *mut c_int) { *n = 2; OK }
    fn cuDeviceGet(d: *mut c_int, n: c_int) { *d = n; OK }
    fn cuDeviceGetName(p: *mut c_char, _len: c_int, _d: c_int) { std::ptr::copy(c"Made-up GPU".as_ptr(), p, 12); OK }
    fn cuDeviceGetUuid(p: *mut [u8; 16], d: c_int) { *p = [7 + d as u8; 16]; OK }
    fn cuDeviceGetUuid_v2(p: *mut [u8; 16], d: c_int) { *p = [7 + d as u8; 16]; OK }
    fn cuDeviceGetPCIBusId(p: *mut c_char, _len: c_int, _d: c_int) { std::ptr::copy(c"0000:01:00.0".as_ptr(), p, 13); OK }
    fn cuDeviceTotalMem_v2(n: *mut usize, _d: c_int) { *n = TOTAL; OK }
    fn cuDeviceGetAttribute(v: *mut c_int, what: c_int, _d: c_int) {
        // Numbers of CUdevice_attribute.
        *v = match what {
            1..=3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65_535,
            8 => 48 << 10,
            16 => 8,
            18 | 20 => 0,
            75 => 9,
            76 => 0,
            _ => 1,
        };
        OK
    }
    fn cuDevicePrimaryCtxRetain(c: *mut u64, d: c_int) { *c = d as u64 + 1; with(|s| *s.live.entry("contexts").or_default() += 1); OK }
    fn cuDevicePrimaryCtxRelease_v2(_d: c_int) {
        with(|s| {
            s.gone("contexts");
            let left: Vec<String> = s.live.iter().filter(|l| *l.1 != 0).map(|(k, n)| format!("{k}={n}")).collect();
            log(&format!("left: memory={} {}", s.allocs.len(), left.join(" ")));
        });
        OK
    }
    fn cuCtxPushCurrent_v2(c: u64) { with(|s| s.current.push(c)); OK }
    fn cuCtxPopCurrent_v2(c: *mut u64) { *c = with(|s| s.current.pop()).unwrap_or(0); OK }
    fn cuCtxSetCurrent(c: u64) { with(|s| { s.current.pop(); if c != 0 { s.current.push(c) } }); OK }
    fn cuCtxGetCurrent(c: *mut u64) { *c = with(|s| s.current.last().copied()).unwrap_or(0); OK }
    fn cuCtxSynchronize() { OK }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) { (*free, *total) = (TOTAL, TOTAL); OK }
    fn cuMemAlloc_v2(p: *mut u64, bytes: usize) {
        log("cuMemAlloc");
        with(|s| { let d = s.device(); s.alloc(bytes, "device", d) }).map_or_else(|rc| rc, |a| { *p = a; OK })
    }
    fn cuMemFree_v2(p: u64) { log("cuMemFree"); with(|s| s.free(p, &["device", "managed"])) }
    fn cuMemAllocManaged(p: *mut u64, bytes: usize, _flags: c_uint) {
        with(|s| { let d = s.device(); s.alloc(bytes, "managed", d) }).map_or_else(|rc| rc, |a| { *p = a; OK })
    }
    fn cuMemHostAlloc(p: *mut *mut c_void, bytes: usize, flags: c_uint) {
        if flags & 2 == 0 { return INVALID; }
        with(|s| s.alloc(bytes, "host", -1)).map_or_else(|rc| rc, |a| { *p = a as *mut c_void; OK })
    }
    fn cuMemHostGetDevicePointer_v2(p: *mut u64, host: *mut c_void, _flags: c_uint) { *p = host as u64; OK }
    fn cuMemFreeHost(host: *mut c_void) { with(|s| s.free(host as u64, &["host"])) }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, _s: u64) { host_copy("copy", bytes); moved(to, from as u64, bytes, [true, false]) }
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, _s: u64) { host_copy("copy", bytes); moved(to as u64, from, bytes, [false, true]) }
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, _s: u64) { log("copy"); moved(to, from, bytes, [false, false]) }
    fn cuMemsetD32Async(to: u64, word: c_uint, n: usize, stream: u64) {
        if with(|s| s.recording.contains_key(&stream) || !s.sound(to, 4 * n, true)) { return INVALID; }
        std::slice::from_raw_parts_mut(to as *mut u32, n).fill(word);
        OK
    }
    fn cuStreamCreate(p: *mut u64, _flags: c_uint) { *p = with(|s| s.handle("streams")); OK }
    fn cuStreamDestroy_v2(_s: u64) { log("cuStreamDestroy"); with(|s| s.gone("streams")) }
    fn cuStreamQuery(_s: u64) { asked() }
    fn cuStreamSynchronize(_s: u64) { log("cuStreamSynchronize"); OK }
    fn cuStreamWaitEvent(_s: u64, _e: u64, _flags: c_uint) { log("busy"); with(|s| s.busy = BUSY); OK }
    fn cuEventCreate(p: *mut u64, _flags: c_uint) { *p = with(|s| s.handle("events")); OK }
    fn cuEventDestroy_v2(_e: u64) { with(|s| s.gone("events")) }
    fn cuEventRecord(_e: u64, stream: u64) { if with(|s| s.recording.contains_key(&stream)) { 907 } else { OK } }
    fn cuEventQuery(_e: u64) { asked() }
    fn cuEventElapsedTime(ms: *mut f32, _a: u64, _b: u64) { *ms = 0.5; OK }
    fn cuModuleLoadData(p: *mut u64, _image: *const c_void) { *p = with(|s| s.handle("modules")); OK }
    fn cuModuleUnload(_m: u64) { with(|s| s.gone("modules")) }
    fn cuModuleGetFunction(p: *mut u64, m: u64, name: *const c_char) {
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        with(|s| s.functions.insert(m, name));
        *p = m;
        OK
    }
    fn cuFuncGetAttribute(v: *mut c_int, what: c_int, _f: u64) { *v = if what == 0 { 1024 } else { 0 }; OK }
    fn cuLaunchKernel(
        f: u64, _gx: c_uint, _gy: c_uint, _gz: c_uint, _x: c_uint, _y: c_uint, _z: c_uint, _shared: c_uint, stream: u64,
        params: *mut *mut c_void, _extra: *mut *mut c_void
    ) {
        let word = |i: usize| **params.add(i).cast::<*const u64>();
        let known = with(|s| s.functions.get(&f).is_some_and(|n| n == "increment"));
        let r = Run(word(0), word(1));
        if !known || !with(|s| s.sound(r.0, 4 * r.1 as usize, true)) { return INVALID; }
        let recorded = with(|s| s.recording.get_mut(&stream).map(|all| all.push(r)).is_some());
        if !recorded {
            log("cuLaunchKernel");
            run(r);
        }
        OK
    }

    #[cfg(not(old))]
    fn cuMemPoolCreate(p: *mut u64, _props: *const c_void) { *p = with(|s| s.handle("pools")); OK }
    #[cfg(not(old))]
    fn cuMemPoolDestroy(_p: u64) { with(|s| s.gone("pools")) }
    #[cfg(not(old))]
    fn cuMemPoolSetAttribute(_p: u64, what: c_int, v: *mut u64) { log(&format!("pool attribute {what} = {}", *v)); OK }
    #[cfg(not(old))]
    fn cuMemPoolSetAccess(_p: u64, _d: *const c_void, _n: usize) { log("cuMemPoolSetAccess"); OK }
    #[cfg(not(old))]
    fn cuMemPoolTrimTo(_p: u64, _bytes: usize) { log("cuMemPoolTrimTo"); OK }
    #[cfg(not(old))]
    fn cuMemAllocFromPoolAsync(p: *mut u64, bytes: usize, _pool: u64, _s: u64) {
        log("cuMemAllocFromPoolAsync");
        with(|s| { s.unlucky = bytes == UNLUCKY; let d = s.device(); s.alloc(bytes, "pool", d) }).map_or_else(|rc| rc, |a| { *p = a; OK })
    }
    #[cfg(not(old))]
    fn cuMemFreeAsync(p: u64, _s: u64) { log("cuMemFreeAsync"); with(|s| s.free(p, &["pool"])) }

    #[cfg(not(old))]
    fn cuStreamBeginCapture_v2(stream: u64, _mode: c_int) { with(|s| s.recording.insert(stream, Vec::new())); OK }
    #[cfg(not(old))]
    fn cuStreamEndCapture(stream: u64, g: *mut u64) {
        with(|s| match s.recording.remove(&stream) {
            Some(all) => { let h = s.handle("graphs"); s.graphs.insert(h, all); *g = h; OK }
            None => INVALID,
        })
    }
    #[cfg(not(old))]
    fn cuGraphInstantiateWithFlags(e: *mut u64, g: u64, _flags: c_ulonglong) {
        with(|s| match s.graphs.get(&g).cloned() {
            Some(all) => { let h = s.handle("instances"); s.graphs.insert(h, all); *e = h; OK }
            None => INVALID,
        })
    }
    #[cfg(not(old))]
    fn cuGraphLaunch(e: u64, _s: u64) {
        log("cuGraphLaunch");
        match with(|s| s.graphs.get(&e).cloned()) {
            Some(all) => { for r in all { run(r) } OK }
            None => INVALID,
        }
    }
    #[cfg(not(old))]
    fn cuGraphExecDestroy(e: u64) { with(|s| { s.graphs.remove(&e); s.gone("instances") }) }
    #[cfg(not(old))]
    fn cuGraphDestroy(g: u64) { with(|s| { s.graphs.remove(&g); s.gone("graphs") }) }

    #[cfg(not(old))]
    fn cuMemcpy2DAsync_v2(c: *const Rows, _s: u64) {
        let c = &*c;
        let host = c.src_kind == 1 || c.dst_kind == 1;
        if host { host_copy("cuMemcpy2DAsync", c.width * c.height) } else { log("cuMemcpy2DAsync") }
        // CU_MEMORYTYPE_HOST is 1, CU_MEMORYTYPE_UNIFIED 4.
        let side = |kind: c_int, host: u64, device: u64| match kind { 1 => Some(host), 4 => Some(device), _ => None };
        let (Some(from), Some(to)) = (side(c.src_kind, c.src_host, c.src_device), side(c.dst_kind, c.dst_host, c.dst_device))
        else { return INVALID };
        if c.width > c.src_pitch || c.width > c.dst_pitch { return INVALID; }
        for r in 0..c.height {
            let rc = moved(to + (r * c.dst_pitch) as u64, from + (r * c.src_pitch) as u64, c.width, [c.dst_kind == 4, c.src_kind == 4]);
            if rc != OK { return rc; }
        }
        OK
    }
    #[cfg(not(old))]
    fn cuDeviceCanAccessPeer(v: *mut c_int, a: c_int, b: c_int) { *v = c_int::from(a != b); OK }
    #[cfg(not(old))]
    fn cuCtxEnablePeerAccess(peer: u64, _flags: c_uint) {
        log("cuCtxEnablePeerAccess");
        with(|s| {
            let pair = (s.device(), peer as c_int - 1);
            if s.reached.contains(&pair) { return 704; }
            s.reached.push(pair);
            OK
        })
    }
    #[cfg(not(old))]
    fn cuMemcpyPeerAsync(to: u64, to_ctx: u64, from: u64, from_ctx: u64, bytes: usize, _s: u64) {
        log("cuMemcpyPeerAsync");
        let of = |address: u64, ctx: u64| with(|s| s.allocs.range(..=address).next_back().is_some_and(|(_, a)| a.device + 1 == ctx as c_int));
        if !of(to, to_ctx) || !of(from, from_ctx) { return INVALID; }
        moved(to, from, bytes, [true, true])
    }
    #[cfg(not(old))]
    fn cuMemPrefetchAsync(p: u64, bytes: usize, to: c_int, _s: u64) {
        with(|s| match s.allocs.get_mut(&p) {
            Some(a) if a.kind == "managed" && bytes <= a.bytes => { a.sent = to; OK }
            _ => INVALID,
        })
    }
    #[cfg(not(old))]
    fn cuMemAdvise(_p: u64, _bytes: usize, advice: c_int, device: c_int) { log(&format!("advice {advice} for {device}")); OK }
    #[cfg(not(old))]
    fn cuMemRangeGetAttribute(v: *mut c_int, size: usize, what: c_int, p: u64, _bytes: usize) {
        // CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
        if size != 4 || what != 4 { return INVALID; }
        *v = with(|s| s.allocs.get(&p).map_or(-2, |a| a.sent));
        OK
    }
}

/// CUDA_MEMCPY2D_v2.
#[repr(C)]
pub struct Rows {
    src_x: usize,
    src_y: usize,
    src_kind: c_int,
    src_host: u64,
    src_device: u64,
    src_array: u64,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_kind: c_int,
    dst_host: u64,
    dst_device: u64,
    dst_array: u64,
    dst_pitch: usize,
    width: usize,
    height: usize,
}
