//! A device whose compiler is made of paper: what it makes of a text is known, so that a wrong kernel cannot go unnoticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuctl::base::rng::Philox;
use gpuctl::base::{Attrs, Case, Clock, Code, DType, DeviceInfo, Error, Fill, Result};
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::{
    Buffer, BuildStats, Device, Health, Kind, Ledger, MemoryKind, MemoryState, Program, Queue, Source,
};
use gpuctl::engine::{KernelCache, Runner};
use gpuctl::kernel::Isa;
use gpuctl::kernel::source::Text;
use gpuctl::op::{self, OpDesc};

/// What a driver's compiled form is fetched through.
pub(crate) type Fetch = Arc<dyn Fn() + Send + Sync>;

pub(crate) struct Paper {
    inner: CpuDevice,
    info: DeviceInfo,
    /// Texts compiled.
    pub(crate) compiled: AtomicU64,
    /// Kept forms that were not, bit for bit, what the compiler makes of their text.
    pub(crate) wrong: AtomicU64,
    /// Kept forms are not taken.
    refuses: bool,
    /// Compiled forms cannot be had.
    silent: bool,
    bytes: usize,
    fetch: Option<Fetch>,
}

impl Paper {
    pub(crate) fn new(bytes: usize) -> Self {
        Paper {
            inner: CpuDevice::new(1, Isa::BASELINE, Pin::Free).unwrap(),
            info: DeviceInfo { name: "paper".into(), driver: "1".into(), ..DeviceInfo::ordinary_gpu() },
            compiled: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            refuses: false,
            silent: false,
            bytes,
            fetch: None,
        }
    }

    pub(crate) fn fetching(self, fetch: impl Fn() + Send + Sync + 'static) -> Self {
        Paper { fetch: Some(Arc::new(fetch)), ..self }
    }

    pub(crate) fn refusing(self) -> Self {
        Paper { refuses: true, ..self }
    }

    pub(crate) fn silent(self) -> Self {
        Paper { silent: true, ..self }
    }

    pub(crate) fn with_driver(mut self, driver: &str) -> Self {
        self.info.driver = driver.into();
        self
    }

    /// As different from text to text as machine code is.
    fn compile(&self, text: &Text) -> Vec<u8> {
        let rng = Philox::new(text.hash());
        (0..self.bytes.div_ceil(8) as u64).flat_map(|i| rng.u64(0, i).to_le_bytes()).take(self.bytes).collect()
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.compiled.load(Ordering::SeqCst), self.wrong.load(Ordering::SeqCst))
    }
}

impl Device for Paper {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn serial(&self) -> u64 {
        self.inner.serial()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
    fn ledger(&self) -> &Arc<Ledger> {
        self.inner.ledger()
    }
    fn memory(&self) -> MemoryState {
        self.inner.memory()
    }
    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        self.inner.alloc(bytes, kind)
    }
    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        let Source::Text(text) = source else { return Err(Error::new(Code::FeatureUnsupported, "paper takes texts")) };
        let made = self.compile(text);
        let taken = cached.filter(|_| !self.refuses);
        if taken.is_some_and(|kept| kept != made) {
            self.wrong.fetch_add(1, Ordering::SeqCst);
        }
        if taken.is_none() {
            self.compiled.fetch_add(1, Ordering::SeqCst);
        }
        let stats = BuildStats { from_cache: taken.is_some(), ..BuildStats::default() };
        let ticket = self.ledger().enter(Kind::Program, 0);
        let program = Program::new((), self.serial(), ticket, None, stats);
        let (fetch, silent) = (self.fetch.clone(), self.silent);
        Ok(program.with_binary(move || {
            if let Some(fetch) = &fetch {
                fetch();
            }
            (!silent).then(|| made.clone())
        }))
    }
    fn queue(&self) -> Result<Box<dyn Queue>> {
        self.inner.queue()
    }
    fn health(&self) -> Health {
        Health::Usable
    }
}

/// The first case of each of these ops in f32.
pub(crate) fn cases(ops: &[&str]) -> Vec<(&'static OpDesc, Case)> {
    let first = |name: &&str| {
        let op = op::find(name).unwrap();
        let dims = vec![64; op.dims.len()];
        (op, op.case(DType::F32, &dims, Attrs::new(), Fill::Uniform).unwrap())
    };
    ops.iter().map(first).collect()
}

/// Ops with a text of their own each.
pub(crate) const OPS: [&str; 12] =
    ["relu", "exp", "log", "tanh", "gemm", "softmax", "transpose", "add", "mul", "sqrt", "sin", "gelu"];

/// A runner that keeps its kernels there, and builds those of `ops`. What it built is written when it goes.
pub(crate) fn built(device: &Arc<Paper>, kernels: &KernelCache, ops: &[&str]) -> Runner {
    let runner = Runner::new(Arc::clone(device) as Arc<dyn Device>).keeping(kernels.clone());
    precompile(&runner, ops);
    runner
}

pub(crate) fn precompile(runner: &Runner, ops: &[&str]) {
    for (op, case) in cases(ops) {
        assert!(runner.precompile(op, &case, None).unwrap() > 0, "{case}");
    }
}
