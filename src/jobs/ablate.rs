//! What the parts of the engine are worth: the same calls with each part and without it, in turns.
//!
//! Whole calls from host memory to host memory, as a program makes them. A gain is one process's: it says what a part does,
//! not what another machine will see.

use std::sync::Arc;
use std::time::Duration;

use crate::base::record::{AblateRecord, PoolUse};
use crate::base::sink::{Cancel, Progress, Sink};
use crate::base::{Attrs, Case, Clock, Code, DType, Env, Error, HostTensor, Record, Result, Status, rng, stats};
use crate::device::Device;
use crate::device::probe::{Rig, Select};
use crate::engine::{Engine, EngineBuilder, KernelCache, Placement, PoolStats, Runner};
use crate::measure::{StopRule, Subject, sample};
use crate::op::{OpDesc, Unit, case};

/// The parts, by the name of their absence, and what is compared.
pub const PARTS: [(&str, &str); 4] = [
    ("no-pool", "device memory is allocated and released in every call"),
    ("no-kernel-cache", "every call builds its kernel; what the driver itself keeps on the disk, it keeps"),
    ("pageable", "operands in ordinary memory instead of page-locked"),
    ("no-threshold", "every call of a mix of sizes runs on the device, instead of where the profile says"),
];

/// Pairs of samples that an interval needs at least.
const FEWEST: usize = 5;

/// What to measure.
#[derive(Clone, Debug)]
pub struct AblateConfig {
    /// Ops; each in f32.
    pub ops: Vec<&'static OpDesc>,
    /// Sizes in each op's unit; `None`: a small, a middling and a large one.
    pub sizes: Option<Vec<u64>>,
    /// Seconds for each row.
    pub budget_s: f64,
    /// The user's settings: their profile is that of `no-threshold`.
    pub env: Env,
}

/// How many rows were measured, and how many failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AblateSummary {
    /// Rows with a gain.
    pub ok: u64,
    /// Rows that failed.
    pub failed: u64,
    /// True if the run was interrupted.
    pub cancelled: bool,
}

impl AblateSummary {
    /// 1: something failed; 4: nothing was measured; else 0.
    pub fn exit_code(&self) -> u8 {
        match self {
            s if s.failed > 0 => 1,
            s if s.ok == 0 => 4,
            _ => 0,
        }
    }
}

/// A closure that is timed.
struct Timed<F> {
    call: F,
    clock: Arc<dyn Clock>,
}

impl<F: FnMut() -> Result<()>> Subject for Timed<F> {
    fn run(&mut self, calls: u64) -> Result<()> {
        (0..calls).try_for_each(|_| (self.call)())
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }
}

/// A call of the run.
struct Call {
    op: &'static OpDesc,
    case: Case,
    inputs: Vec<HostTensor>,
}

impl Call {
    fn borrowed(&self) -> Vec<&HostTensor> {
        self.inputs.iter().collect()
    }
    fn name(&self) -> String {
        format!("{}/{}/{}", self.case.op, self.case.dtype, self.case.shape_text())
    }
}

/// The calls of a configuration. Errors: sizes that an op does not take, an op without f32.
fn calls(cfg: &AblateConfig) -> Result<Vec<Call>> {
    let mut all = Vec::new();
    for op in &cfg.ops {
        let own: &[u64] = if op.unit == Unit::Dim { &[16, 128, 512] } else { &[1_000, 30_000, 1_000_000] };
        for size in cfg.sizes.as_deref().unwrap_or(own) {
            let case = op.sized(DType::F32, *size, Attrs::new())?;
            let inputs = case::inputs(op, &case)?;
            all.push(Call { op, case, inputs });
        }
    }
    Ok(all)
}

/// Says what [`run`] would refuse, without running anything.
pub fn check(cfg: &AblateConfig) -> Result<()> {
    calls(cfg).map(drop)
}

/// Measures every part on every device but the CPU.
///
/// Errors: `BadArgument` if there is no such device; those of [`check`]. What fails on a device is a row.
pub fn run(cfg: &AblateConfig, rig: &Rig, sink: &mut dyn Sink, cancel: &Cancel) -> Result<AblateSummary> {
    let calls = calls(cfg)?;
    let devices: Vec<_> = rig.devices.iter().filter(|d| d.serial() != rig.cpu.serial()).collect();
    if devices.is_empty() {
        let why = "ablations are of calls on a GPU: name a device, or use --device all for software devices";
        return Err(Error::new(Code::BadArgument, why));
    }
    let mut summary = AblateSummary::default();
    let total = devices.len() * (3 * calls.len() + 1);
    let mut done = 0;
    for device in devices {
        let lab = Lab::new(cfg, rig, device);
        let mut jobs: Vec<(&str, Option<&Call>)> =
            calls.iter().flat_map(|c| PARTS[..3].iter().map(move |(part, _)| (*part, Some(c)))).collect();
        jobs.push((PARTS[3].0, None));
        for (part, call) in jobs {
            let doing = format!("{part} on {}", device.info().id);
            sink.progress(&Progress { doing, done, total: Some(total as u64) });
            done += 1;
            if cancel.raised() {
                summary.cancelled = true;
                return Ok(summary);
            }
            let names = call.map_or_else(|| format!("{} calls in turn", calls.len()), Call::name);
            let measured =
                lab.as_ref().map_err(|e| Error::new(e.code(), e.detail())).and_then(|lab| match (part, call) {
                    ("no-pool", Some(call)) => lab.no_pool(call, cancel),
                    ("no-kernel-cache", Some(call)) => lab.no_kernel_cache(call, cancel),
                    ("pageable", Some(call)) => lab.pageable(call, cancel),
                    _ => lab.no_threshold(&calls, cancel),
                });
            let mut row = row(part, &**device, names, measured);
            if let (Ok(lab), "no-pool", Status::Ok) = (&lab, part, row.status) {
                row.pool = lab.pool_use();
            }
            match row.status {
                Status::Ok => summary.ok += 1,
                Status::Failed => summary.failed += 1,
                _ => {}
            }
            sink.record(&Record::Ablate(Box::new(row)));
        }
    }
    Ok(summary)
}

fn row(part: &str, device: &dyn Device, calls: String, measured: Result<[Vec<f64>; 2]>) -> AblateRecord {
    let info = device.info();
    let mut row = AblateRecord {
        without: part.into(),
        device: info.id.clone(),
        uid: info.uid.clone(),
        calls,
        status: Status::Ok,
        reason: String::new(),
        with_s: None,
        without_s: None,
        gain: None,
        gain_ci: None,
        pairs: 0,
        pool: None,
    };
    match measured {
        Ok([with, without]) if with.len() < FEWEST => {
            row.status = Status::Skipped;
            let call = crate::base::units::seconds(stats::median(&with) + stats::median(&without));
            row.reason = format!("a pair takes {call}: fewer than {FEWEST} pairs within the budget (--budget)");
        }
        Ok([with, without]) => {
            let medians = (stats::median(&with), stats::median(&without));
            row.with_s = Some(medians.0);
            row.without_s = Some(medians.1);
            row.gain = Some(medians.1 / medians.0);
            row.gain_ci = Some(stats::ratio_ci(&without, &with, rng::fnv1a64(row.calls.as_bytes())));
            row.pairs = with.len() as u64;
        }
        Err(e) => {
            let absent = matches!(e.code(), Code::FeatureUnsupported | Code::OpUnsupported);
            row.status = if absent { Status::Unsupported } else { Status::Failed };
            row.reason = if absent { e.detail().into() } else { e.to_string() };
        }
    }
    row
}

/// Engines on one device, that differ in a part each.
struct Lab<'a> {
    cfg: &'a AblateConfig,
    device: &'a Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    whole: Engine,
    unpooled: Engine,
    /// Its kernels are forgotten before each call.
    forgetful: Engine,
}

impl<'a> Lab<'a> {
    fn new(cfg: &'a AblateConfig, rig: &Rig, device: &'a Arc<dyn Device>) -> Result<Self> {
        let threads = rig.cpu.info().compute_units as usize;
        let forced = |change: fn(EngineBuilder) -> EngineBuilder| {
            let place = Placement::ForceGpu(device.info().id.clone());
            change(on(cfg, device, threads)).profile("always-cpu").placement(place).no_fallback().build()
        };
        Ok(Lab {
            cfg,
            device,
            clock: device.clock(),
            whole: forced(|b| b)?,
            unpooled: forced(EngineBuilder::without_pool)?,
            forgetful: forced(|b| b)?,
        })
    }

    /// Samples of both, taken in turns: seconds of a call with the part, and without it.
    fn pairs(
        &self,
        mut with: impl FnMut() -> Result<()>,
        mut without: impl FnMut() -> Result<()>,
        cancel: &Cancel,
    ) -> Result<[Vec<f64>; 2]> {
        // Kernels are built first, at nobody's expense.
        with()?;
        without()?;
        let rule = StopRule { spread: 0.01, ..StopRule::with_budget(self.cfg.budget_s) };
        let mut with = Timed { call: with, clock: Arc::clone(&self.clock) };
        let mut without = Timed { call: without, clock: Arc::clone(&self.clock) };
        let series = sample(&mut [&mut with, &mut without], &rule, cancel)?;
        let mut series = series.into_iter().map(|s| s.samples);
        Ok([series.next().unwrap_or_default(), series.next().unwrap_or_default()])
    }

    fn no_pool(&self, call: &Call, cancel: &Cancel) -> Result<[Vec<f64>; 2]> {
        let inputs = call.borrowed();
        let run = |engine: &Engine| engine.run(call.op.name, &inputs, &call.case.attrs).map(drop);
        self.pairs(|| run(&self.whole), || run(&self.unpooled), cancel)
    }

    /// What the pool did so far in the engine that has one.
    fn pool_use(&self) -> Option<PoolUse> {
        let status = self.whole.status();
        let pool = status.gpus.into_iter().find(|d| d.uid == self.device.info().uid)?.pool?;
        let PoolStats { hits, misses, idle_bytes, peak_bytes, .. } = pool;
        Some(PoolUse { hits, misses, idle_bytes, peak_bytes })
    }

    fn no_kernel_cache(&self, call: &Call, cancel: &Cancel) -> Result<[Vec<f64>; 2]> {
        let inputs = call.borrowed();
        let run = |engine: &Engine| engine.run(call.op.name, &inputs, &call.case.attrs).map(drop);
        let anew = || {
            self.forgetful.forget_kernels();
            run(&self.forgetful)
        };
        self.pairs(|| run(&self.whole), anew, cancel)
    }

    fn pageable(&self, call: &Call, cancel: &Cancel) -> Result<[Vec<f64>; 2]> {
        let runner = Runner::new(Arc::clone(self.device));
        let prepared = runner.prepare(call.op, &call.case, None)?;
        let (mut one, mut two) = (runner.lease()?, runner.lease()?);
        let pins = prepared.pin(one.queue()?, &call.inputs)?;
        let mut results = prepared.results()?;
        let deadline = Duration::from_secs_f64((4.0 * self.cfg.budget_s).max(30.0));
        self.pairs(
            || prepared.call_pinned(one.queue()?, &pins, deadline),
            || prepared.call_into(two.queue()?, &call.inputs, &mut results, deadline),
            cancel,
        )
    }

    /// All calls in turn, where the profile says and on the device.
    fn no_threshold(&self, calls: &[Call], cancel: &Cancel) -> Result<[Vec<f64>; 2]> {
        let threads = self.whole.device_info("cpu").map_or(0, |i| i.compute_units as usize);
        let routed = on(self.cfg, self.device, threads).build()?;
        let id = &self.device.info().id;
        let on_device = calls.iter().map(|c| Ok(routed.why(&c.case)?.device == *id)).collect::<Result<Vec<_>>>()?;
        if !on_device.contains(&true) {
            let why = format!(
                "the profile ({}) sends none of these calls to {id}: make one with `gpuctl calibrate`, and name it in \
                 GPUCTL_PROFILE",
                routed.source()
            );
            return Err(Error::new(Code::FeatureUnsupported, why));
        }
        let all = |engine: &Engine| {
            calls.iter().try_for_each(|c| engine.run(c.op.name, &c.borrowed(), &c.case.attrs).map(drop))
        };
        self.pairs(|| all(&routed), || all(&self.whole), cancel)
    }
}

/// Settings of an engine with this device alone.
fn on(cfg: &AblateConfig, device: &Arc<dyn Device>, threads: usize) -> EngineBuilder {
    let select = Select::Named(vec![device.info().id.clone()]);
    let builder = Engine::builder().env(cfg.env.clone()).device(Arc::clone(device)).devices(select);
    builder.threads(threads).without_trials().kernel_cache(KernelCache::off())
}
