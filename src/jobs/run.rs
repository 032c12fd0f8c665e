//! One op on the user's own arrays: read, run on one device, written back.
//!
//! Nothing is promoted, converted or reshaped on the way. The result is not judged (that is `verify`'s work on data of its
//! own), but a kernel that writes beside its operands is an error, and so are one that computes a small known case wrong at its
//! first use and a device that fails: a named device is never replaced by another.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::record::{ArrayFile, RunRecord, Status, Subject};
use crate::base::{Attrs, Code, DType, DeviceClass, DeviceInfo, Error, HostTensor, Result, npy, units};
use crate::device::probe::Rig;
use crate::engine::{Computed, Engine, KernelCache, Outcome, Runner, Trials, judge};
use crate::op::{DTypeRule, OpDesc, Operand, Role, case};

/// What to run.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The op.
    pub op: &'static OpDesc,
    /// Files of the read operands, in the op's order.
    pub inputs: Vec<PathBuf>,
    /// Files of the written operands, in the op's order.
    pub outputs: Vec<PathBuf>,
    /// Attributes as text: `k=v,..`.
    pub attrs: String,
    /// Dtype that the operands must have; `bf16` takes arrays of u16 as its bits.
    pub dtype: Option<DType>,
    /// Kernel variant; only on a named device.
    pub variant: Option<String>,
}

/// Where to run it.
#[derive(Debug)]
pub enum Place<'a> {
    /// On the one device of the rig, once its kernel has passed a trial; compiled kernels are kept there.
    Device(&'a Rig, &'a Trials, &'a KernelCache),
    /// Where the engine's profile says.
    Profile(&'a Engine),
}

/// Runs the op and writes its results; gives what ran where, and that device. Nothing is written unless all succeeded.
///
/// Errors: `ArrayFile` for a file that is no array, those of [`Engine::run`] for operands that do not fit, and the
/// device's own.
pub fn run(cfg: &RunConfig, place: &Place<'_>) -> Result<(RunRecord, DeviceInfo)> {
    let op = cfg.op;
    let named = |e: Error| e.op(op.name);
    let read: Vec<&Operand> = op.operands.iter().filter(|o| o.role != Role::Out).collect();
    let written: Vec<&Operand> = op.operands.iter().filter(|o| o.role != Role::In).collect();
    counts(cfg, &read, &written).map_err(named)?;
    let attrs = case::parse_attrs(op, &cfg.attrs)?;
    let tensors = load(cfg, &read).map_err(named)?;
    let inputs: Vec<&HostTensor> = tensors.iter().collect();
    let (done, info, decision, fallback): Done = match place {
        Place::Device(rig, trials, kernels) => on_device(cfg, rig, (trials, kernels), &inputs, &attrs)?,
        Place::Profile(engine) => by_profile(op, engine, &inputs, &attrs)?,
    };
    let Computed { case, outputs, variant, reason, seconds } = done;
    let arrays: Vec<(&Path, &HostTensor)> = cfg.outputs.iter().map(PathBuf::as_path).zip(&outputs).collect();
    npy::write(&arrays)?;
    let work = u64::try_from((op.work)(&case)).unwrap_or(u64::MAX);
    let mut subject = Subject::of(&case, work, op.unit.name(), &info);
    subject.ran_on = info.id.clone();
    subject.ran_variant(variant, &info);
    subject.status = Status::Ok;
    subject.reason = decision.unwrap_or(reason);
    subject.flags.push("unchecked".into());
    if fallback.is_some() {
        subject.flags.push("fallback".into());
    }
    let record = RunRecord {
        subject,
        seconds,
        inputs: files(&read, &cfg.inputs, &tensors),
        outputs: files(&written, &cfg.outputs, &outputs),
        fallback,
    };
    Ok((record, info))
}

/// The call, where it ran, the engine's decision and fallback.
type Done = (Computed, DeviceInfo, Option<String>, Option<String>);

fn on_device(
    cfg: &RunConfig,
    rig: &Rig,
    (trials, kernels): (&Trials, &KernelCache),
    inputs: &[&HostTensor],
    attrs: &Attrs,
) -> Result<Done> {
    let [device] = rig.devices.as_slice() else {
        let ids: Vec<&str> = rig.devices.iter().map(|d| d.info().id.as_str()).collect();
        return Err(Error::new(
            Code::BadArgument,
            format!("run takes one device, got {}: {}", ids.len(), ids.join(" ")),
        ));
    };
    let runner = Runner::new(Arc::clone(device)).keeping(kernels.clone());
    let done = runner.run(cfg.op, inputs, attrs, cfg.variant.as_deref())?;
    // No compiler but that of this program made the CPU's kernels.
    if device.info().class != DeviceClass::Cpu
        && let Some(wrong) = judge::first_use(trials, &runner, cfg.op, &done.case, cfg.variant.as_deref())?
    {
        runner.distrust(cfg.op, &done.case, cfg.variant.as_deref())?;
        return Err(wrong.error(device.info()));
    }
    Ok((done, device.info().clone(), None, None))
}

fn by_profile(op: &'static OpDesc, engine: &Engine, inputs: &[&HostTensor], attrs: &Attrs) -> Result<Done> {
    let Outcome { outputs, ran_on, variant, decision, fallback, seconds, case } = engine.run(op.name, inputs, attrs)?;
    let info = engine.device_info(&ran_on)?;
    Ok((
        Computed { case, outputs, variant, reason: String::new(), seconds },
        info,
        Some(decision.to_string()),
        fallback,
    ))
}

/// As many files as operands.
fn counts(cfg: &RunConfig, read: &[&Operand], written: &[&Operand]) -> Result<()> {
    let names = |list: &[&Operand]| list.iter().map(|o| o.name).collect::<Vec<_>>().join(", ");
    // What is also written may be left out where it is not read: gemm's C.
    let least = read.iter().filter(|o| o.role == Role::In).count();
    let given = cfg.inputs.len();
    if given < least || given > read.len() {
        let range = if least == read.len() { least.to_string() } else { format!("{least} to {}", read.len()) };
        let missing = read.get(given).map_or(String::new(), |o| format!("; {} is missing", o.name));
        let why = format!("takes {range} inputs ({}), --in was given {given} times{missing}", names(read));
        return Err(Error::new(Code::BadArgument, why));
    }
    let given = cfg.outputs.len();
    if given != written.len() {
        let why = format!("gives {} results ({}), --out was given {given} times", written.len(), names(written));
        return Err(Error::new(Code::BadArgument, why));
    }
    if let Some(i) = (1..given).find(|i| cfg.outputs[..*i].contains(&cfg.outputs[*i])) {
        return Err(Error::new(Code::BadArgument, format!("--out {} is given twice", cfg.outputs[i].display())));
    }
    Ok(())
}

/// Reads the arrays and holds them against `--dtype`.
fn load(cfg: &RunConfig, read: &[&Operand]) -> Result<Vec<HostTensor>> {
    let mut tensors = Vec::with_capacity(cfg.inputs.len());
    for (path, operand) in cfg.inputs.iter().zip(read) {
        let mut tensor = npy::read(path)?;
        if cfg.dtype == Some(DType::BF16) && !matches!(operand.dtype, DTypeRule::Fixed(_)) {
            tensor = npy::as_bf16(tensor);
        }
        if let (Some(want), DTypeRule::Same) = (cfg.dtype, operand.dtype)
            && tensor.dtype != want
        {
            let why =
                format!("{} is {}, expected {want} as --dtype says; gpuctl never promotes", operand.name, tensor.dtype);
            return Err(Error::new(Code::DTypeMismatch, why));
        }
        if let DTypeRule::Same = operand.dtype
            && !cfg.op.dtypes.contains(&tensor.dtype)
        {
            let known: Vec<&str> = cfg.op.dtypes.iter().map(|d| d.name()).collect();
            let why = format!("{} is {}, expected one of {}", operand.name, tensor.dtype, known.join(" "));
            return Err(Error::new(Code::DTypeUnsupported, why));
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

fn files(operands: &[&Operand], paths: &[PathBuf], tensors: &[HostTensor]) -> Vec<ArrayFile> {
    let file = |((operand, path), t): ((&&Operand, &PathBuf), &HostTensor)| ArrayFile {
        operand: operand.name.to_string(),
        path: path.display().to_string(),
        dtype: t.dtype,
        shape: t.shape.clone(),
    };
    operands.iter().zip(paths).zip(tensors).map(file).collect()
}

/// A record for people: `gemm f32 m64,n64,k64 ran on opencl:0 (tiled64) in 1.2 ms`, then a line per result.
pub fn lines(r: &RunRecord) -> String {
    let s = &r.subject;
    let mut out = format!(
        "{} {} {} ran on {} ({}) in {}",
        s.op,
        s.dtype,
        s.shape_text,
        s.ran_on,
        s.variant,
        units::seconds(r.seconds)
    );
    let flags: Vec<&str> = s.flags.iter().map(String::as_str).filter(|f| *f != "unchecked").collect();
    if !flags.is_empty() {
        out.push_str(&format!(" [{}]", flags.join(", ")));
    }
    for o in &r.outputs {
        out.push_str(&format!("\n{} -> {} {} {:?}", o.operand, o.path, o.dtype, o.shape));
    }
    if let Some(why) = &r.fallback {
        out.push_str(&format!("\nfell back to the CPU: {why}"));
    }
    out
}
