//! Settings of an engine: its profile, devices and threads.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;

use crate::base::blas::CpuBlas;
use crate::base::{Env, Error, Result, Told, os};
use crate::device::cpu::{CpuDevice, Pin};
use crate::device::probe::{self, CpuConfig, Found, Select};
use crate::device::{DEADLINE, Device, tap};
use crate::kernel::Isa;
use crate::op;
use crate::profile::file::{self, Loaded};
use crate::profile::{Chooser, Host, Profile, Source};

use super::gpu::{Common, Gpu};
use super::place::Places;
use super::pool::PoolConfig;
use super::record::Recorder;
use super::recover::RecoveryConfig;
use super::strategy::{ErrorEvent, Hooks, Strategy};
use super::{Counts, Engine, KernelCache, Placement, Trials};

/// Whether a program was told of GPUs that nobody measured: once is enough.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Where the profile comes from.
#[derive(Clone, Debug, Default)]
enum From {
    /// Environment, user's file, always-cpu.
    #[default]
    Search,
    /// A preset or a file.
    Spec(String),
    /// A value.
    Given(Box<Profile>),
}

/// Settings of an [`Engine`].
#[derive(Clone, Default)]
pub struct EngineBuilder {
    profile: From,
    select: Option<Select>,
    threads: usize,
    env: Option<Env>,
    placement: Placement,
    cpu_variant: Option<String>,
    devices: Vec<Given>,
    cpu_blas: Option<CpuBlas>,
    record: Option<PathBuf>,
    strict: bool,
    untried: bool,
    kernels: Option<KernelCache>,
    pool: PoolConfig,
    unpooled: bool,
    recovery: RecoveryConfig,
    deadline: Option<Duration>,
    tracer: Option<Arc<tap::Tracer>>,
    hooks: Hooks,
}

/// How a device is opened.
type Open = dyn Fn() -> Result<Arc<dyn Device>> + Send + Sync;

/// A device that the program brings.
#[derive(Clone)]
enum Given {
    Opened(Arc<dyn Device>),
    From(Arc<Open>),
}

impl Given {
    fn gpu(self, common: &Arc<Common>) -> Result<Gpu> {
        match self {
            Given::Opened(device) => Ok(Gpu::open(device, common)),
            Given::From(open) => {
                let device = open()?;
                let found = Found::new(device.info().clone(), move || open());
                Ok(Gpu::open_from(device, found, common))
            }
        }
    }
}

impl std::fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EngineBuilder({:?}, {:?}, {} threads)", self.profile, self.placement, self.threads)
    }
}

impl EngineBuilder {
    /// A profile by `preset:NAME`, a preset's bare name, or a file.
    pub fn profile(mut self, spec: impl Into<String>) -> Self {
        self.profile = From::Spec(spec.into());
        self
    }
    /// A profile as a value.
    pub fn profile_value(mut self, profile: Profile) -> Self {
        self.profile = From::Given(Box::new(profile));
        self
    }
    /// Restricts the GPUs that may be used. The default: those that the profile measured, and real GPUs for presets.
    pub fn devices(mut self, select: Select) -> Self {
        self.select = Some(select);
        self
    }
    /// Adds an opened device, found before all others. If it is lost it is not opened again, as nobody knows how.
    pub fn device(mut self, device: Arc<dyn Device>) -> Self {
        self.devices.push(Given::Opened(device));
        self
    }
    /// Adds a device, found before all others, that is opened by `open`: once when the engine is built, and again after it
    /// was lost. It must be the same device each time, by its uid.
    pub fn device_from(mut self, open: impl Fn() -> Result<Arc<dyn Device>> + Send + Sync + 'static) -> Self {
        self.devices.push(Given::From(Arc::new(open)));
        self
    }
    /// Settings of the pools of device memory, one for each device. The default: [`PoolConfig::default`].
    pub fn pool(mut self, config: PoolConfig) -> Self {
        (self.pool, self.unpooled) = (config, false);
        self
    }
    /// Every call allocates its device memory and releases it.
    pub fn without_pool(mut self) -> Self {
        self.unpooled = true;
        self
    }
    /// When a device that failed is used again. The default: [`RecoveryConfig::default`].
    pub fn recovery(mut self, config: RecoveryConfig) -> Self {
        self.recovery = config;
        self
    }
    /// How long a call may take on a device before the device counts as hung. The default: [`DEADLINE`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
    /// Threads of the CPU; 0 (the default): all that the process may use.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }
    /// Environment to use instead of the process's.
    pub fn env(mut self, env: Env) -> Self {
        self.env = Some(env);
        self
    }
    /// Who decides where calls run.
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }
    /// The CPU's kernel variant, e.g. `naive`; profiles made against another one then say nothing.
    pub fn cpu_variant(mut self, variant: impl Into<String>) -> Self {
        self.cpu_variant = Some(variant.into());
        self
    }
    /// Whose matrix and vector products the CPU runs; [`Env::cpu_blas`] if this is not called. A library is run within this
    /// process, and stays open. Profiles made against another CPU side then say nothing.
    ///
    /// Idle threads of a library look for work for some milliseconds after each call (OpenBLAS 30, libgomp 15, Intel's OpenMP
    /// 200); the command line sets `OPENBLAS_THREAD_TIMEOUT`, `GOMP_SPINCOUNT` and `KMP_BLOCKTIME`, a program may do so itself.
    pub fn cpu_blas(mut self, blas: CpuBlas) -> Self {
        self.cpu_blas = Some(blas);
        self
    }
    /// Records all calls in this file, as `GPUCTL_RECORD` does ([`super::record`]).
    pub fn record(mut self, file: impl Into<PathBuf>) -> Self {
        self.record = Some(file.into());
        self
    }
    /// Errors of a GPU are returned instead of running the call on the CPU.
    pub fn no_fallback(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Calls this once for each error of a GPU that the engine handles: what it was and what is done about it. It is called
    /// on the thread of the call, with no lock held, before the recovery; what it panics with is logged and ends there.
    /// Several are called in the order in which they were added.
    pub fn on_error(mut self, handler: impl Fn(&ErrorEvent<'_>) + Send + Sync + 'static) -> Self {
        self.hooks.handler(Arc::new(handler));
        self
    }

    /// Decides what is done about errors of a GPU; `None` leaves it to the next one added, at last to [`Strategy::of`].
    /// A wrong request (class `Usage`) always fails, and nothing is tried again on a lost or poisoned device.
    pub fn strategy(mut self, decider: impl Fn(&Error) -> Option<Strategy> + Send + Sync + 'static) -> Self {
        self.hooks.decider(Arc::new(decider));
        self
    }

    /// Kernels are trusted as they are. Else each computes a small known case before its first use on a device and driver,
    /// and the verdict is kept in the user's cache folder ([`super::judge`]).
    pub fn without_trials(mut self) -> Self {
        self.untried = true;
        self
    }

    /// Traces all devices of the engine ([`Engine::trace`]); at most [`tap::KEPT`] events are kept, totals count all.
    pub fn trace(self) -> Self {
        self.tracer(tap::Tracer::new("gpuctl", tap::KEPT))
    }

    /// The same into a tracer that others may share.
    pub fn tracer(mut self, tracer: Arc<tap::Tracer>) -> Self {
        self.tracer = Some(tracer);
        self
    }

    /// Where compiled kernels are kept; the default is the user's cache folder. [`KernelCache::off`]: nowhere.
    pub fn kernel_cache(mut self, kernels: KernelCache) -> Self {
        self.kernels = Some(kernels);
        self
    }

    /// Loads the profile and starts the CPU's threads. Opens no driver unless the placement forces one.
    ///
    /// Errors: those of loading the profile, `BadArgument` for a wrong variable, `DeviceMissing` or `DeviceDisabled` for a
    /// forced or simulated device that is not there.
    pub fn build(self) -> Result<Engine> {
        let env = self.env.map_or_else(Env::read, Ok)?;
        let env = match self.cpu_blas {
            Some(cpu_blas) => Env { cpu_blas, ..env },
            None => env,
        };
        let loaded = search(self.profile, &env)?;
        for warning in &loaded.warnings {
            log::warn!("profile {}: {warning}", loaded.source);
        }
        let chosen = matches!(self.placement, Placement::ForceCpu | Placement::ForceGpu(_));
        if !env.disable_gpu && !chosen && !TOLD.swap(true, Ordering::Relaxed) {
            let notice = loaded.profile.cpu_only_by_nodes(&loaded.source, &os::gpu_nodes());
            notice.iter().for_each(|text| log::warn!("{text}"));
        }
        let isa = env.cpu_isa.as_deref().map_or_else(|| Ok(Isa::detect()), Isa::capped)?;
        let mut devices = self.devices;
        let select = self.select.unwrap_or(Select::Default);
        let mut cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_blas(self.threads, isa, Pin::Free, &env.cpu_blas)?);
        if let Some(names) = simulated(&select, &self.placement) {
            // A simulated device brings the CPU that it may be compared with.
            let config = CpuConfig { threads: self.threads, pin: Pin::Free };
            let rig = probe::open(&Select::Named(names), &env, config)?;
            devices.extend(rig.devices.into_iter().map(Given::Opened));
            cpu = rig.cpu;
        }
        let other_host = loaded.profile.other_host(&Host::of(cpu.info()));
        let recorder = self.record.as_ref().or(env.record.as_ref()).map(|file| Recorder::open(file));
        let trials = (!self.untried).then(|| Trials::of(&env));
        let common = Arc::new(Common {
            clock: cpu.clock(),
            changes: AtomicU64::new(0),
            resting: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            recovery: self.recovery,
            pool: (!self.unpooled).then_some(self.pool),
            tracer: self.tracer.clone(),
            kernels: self.kernels.unwrap_or_else(|| KernelCache::of(&env)),
            deadline: self.deadline.unwrap_or(DEADLINE),
            traffic: Arc::default(),
        });
        let given = devices.into_iter().map(|d| d.gpu(&common)).collect::<Result<Vec<_>>>()?;
        let places = Places {
            chooser: Chooser::knowing(loaded.profile, op::words()),
            placement: self.placement,
            select,
            env,
            cpu: Arc::new(common.runner(cpu)),
            cpu_variant: self.cpu_variant,
            other_host,
            given: Mutex::new(given),
            gpus: OnceLock::new(),
            beyond: Mutex::default(),
            common,
        };
        places.check_forced()?;
        Ok(Engine {
            places,
            source: loaded.source,
            strict: self.strict,
            plans: RwLock::default(),
            told: Mutex::default(),
            counts: Counts::default(),
            recorder,
            trials,
            tried: Mutex::default(),
            launcher: OnceLock::new(),
            tracer: self.tracer,
            hooks: self.hooks,
        })
    }
}

impl Engine {
    /// The one engine of a program that wants no more than one: [`Engine::auto`] at the first call, the same ever after. A
    /// failure is kept as well: what is wrong with a profile does not change while the program runs.
    ///
    /// ```
    /// # fn main() -> gpuctl::base::Result<()> {
    /// use gpuctl::engine::Engine;
    /// assert!(std::sync::Arc::ptr_eq(Engine::global()?, Engine::global()?));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: those of [`EngineBuilder::build`].
    pub fn global() -> Result<&'static Arc<Engine>> {
        static GLOBAL: OnceLock<std::result::Result<Arc<Engine>, Box<Told>>> = OnceLock::new();
        let made = GLOBAL.get_or_init(|| Engine::auto().map(Arc::new).map_err(|e| Box::new(Told::from(&e))));
        made.as_ref().map_err(|told| Told::clone(told).error())
    }
}

#[cfg(feature = "wgpu")]
impl Engine {
    /// An engine that runs its calls on a device of the program's own, and on the CPU what has no kernel there. The device stays
    /// the program's ([`crate::device::wgpu::WgpuDevice::from_wgpu`], which says what is shared). For other settings hand the
    /// device to [`EngineBuilder::device`].
    ///
    /// ```no_run
    /// # fn mine() -> (gpuctl::device::wgpu::wgpu::Device, gpuctl::device::wgpu::wgpu::Queue) { std::process::exit(0) }
    /// # fn main() -> gpuctl::base::Result<()> {
    /// let (device, queue) = mine(); // of the release that gpuctl::device::wgpu::wgpu is
    /// let engine = gpuctl::engine::Engine::from_wgpu(device.clone(), queue.clone())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: those of [`EngineBuilder::build`], and `FeatureUnsupported` for a device of another API.
    pub fn from_wgpu(
        device: crate::device::wgpu::wgpu::Device,
        queue: crate::device::wgpu::wgpu::Queue,
    ) -> Result<Engine> {
        let device = crate::device::wgpu::WgpuDevice::from_wgpu(device, queue, None)?;
        let placement = Placement::ForceGpu(device.info().id.clone());
        Engine::builder().device(Arc::new(device)).placement(placement).build()
    }
}

#[cfg(feature = "cuda")]
impl Engine {
    /// An engine that runs its calls in a context and a stream of the program's own, and on the CPU what has no kernel there.
    /// Both stay the program's ([`crate::device::cuda::CudaDevice::from_cuda`], which says what is shared). For other settings
    /// hand the device to [`EngineBuilder::device`].
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use gpuctl::device::cuda::cudarc::driver::CudaContext;
    /// let context = CudaContext::new(0)?; // of the release that gpuctl::device::cuda::cudarc is
    /// let stream = context.new_stream()?;
    /// let engine = gpuctl::engine::Engine::from_cuda(&context, &stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: those of [`EngineBuilder::build`], `BadArgument` for a stream of another context, `DriverTooOld`.
    pub fn from_cuda(
        context: &Arc<crate::device::cuda::cudarc::driver::CudaContext>,
        stream: &Arc<crate::device::cuda::cudarc::driver::CudaStream>,
    ) -> Result<Engine> {
        let device = crate::device::cuda::CudaDevice::from_cuda(context, stream)?;
        let placement = Placement::ForceGpu(device.info().id.clone());
        Engine::builder().device(Arc::new(device)).placement(placement).build()
    }
}

/// Names of simulated devices in a selection or placement.
fn simulated(select: &Select, placement: &Placement) -> Option<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    if let Select::Named(n) = select {
        names.extend(n.iter().filter(|n| n.starts_with("sim:")).cloned());
    }
    if let Placement::ForceGpu(n) = placement
        && n.starts_with("sim:")
        && !names.contains(n)
    {
        names.push(n.clone());
    }
    (!names.is_empty()).then_some(names)
}

/// The profile by the order of search: argument, `GPUCTL_PROFILE`, `profile.toml` in the user's configuration, always-cpu.
fn search(from: From, env: &Env) -> Result<Loaded> {
    match from {
        From::Spec(spec) => file::load(&spec),
        From::Given(profile) => {
            file::validate(&profile)?;
            Ok(Loaded { profile: *profile, source: Source::Embedded, warnings: Vec::new() })
        }
        From::Search => {
            if let Some(spec) = &env.profile {
                return file::load(spec);
            }
            let own = env.config_dir.as_ref().map(|dir| dir.join("profile.toml")).filter(|p| file::may_be_there(p));
            file::load_source(own.map_or(Source::Embedded, Source::File))
        }
    }
}
