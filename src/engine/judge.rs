//! Whether a kernel computes right: a small known case, held against the oracle.
//!
//! A device whose compiler is wrong is as fast as any other, so before an engine uses a kernel on a device for the first time
//! it runs a case of the op's own list with it, in the very text that the call takes, and keeps the verdict
//! ([`Trials`]). `calibrate` judges here before it measures. Not here: every case and every rule (`jobs::verify`).

use std::time::Duration;

use crate::base::{Case, Code, DeviceInfo, Error, Fill, HostTensor, Result, rng};
use crate::device::{DEADLINE, sim};
use crate::kernel::{self, Body, Choice, source};
use crate::op::expected::Expected;
use crate::op::{CaseSpec, OpDesc, Tier, case};

use super::run::{Guard, Runner};
use super::trials::{Fault, Known, Program, Trials, Verdict, this_build};

/// Elements of all operands up to which a case is a trial's; some texts are of long rows alone.
const MOST_ELEMENTS: u64 = 1 << 17;
/// Operations up to which a case is a trial's: the oracle makes them one by one.
const MOST_FLOPS: u64 = 1 << 22;
/// Elements from which a case shows something: one element alone passes through a wrong reduction unchanged.
const TELLING: u64 = 64;

/// What a case says of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// So many elements, all of them, are within their bounds, and nothing was written beside them.
    Right(u64),
    /// The first wrong element with its values and bound, or what was written out of range.
    Wrong(String),
    /// Nothing can be said, and why.
    Unjudged(String),
}

/// Runs a case with a kernel that was chosen for it, outputs poisoned and memory around all operands watched, and compares
/// every element with the oracle's, within the op's bound.
///
/// Errors: what goes wrong before there is a result: a build, an allocation, a launch, a deadline.
pub fn judge(runner: &Runner, op: &'static OpDesc, case: &Case, choice: Choice, deadline: Duration) -> Result<Judged> {
    let info = runner.device().info();
    if sim::timing_only(info) {
        return Ok(Judged::Unjudged(sim::TIMING_ONLY.into()));
    }
    if op.bounds(case, choice.lang).is_none() {
        let why = format!("no limit is published for {} in {:?}: results cannot be judged", case.dtype, choice.lang);
        return Ok(Judged::Unjudged(why));
    }
    let lang = choice.lang;
    let named = |e: Error| e.op(op.name).shape(&case.shape_text()).device(&info.id);
    let prepared = runner.prepare_choice(op, case, choice, Guard::LIGHT).map_err(named)?;
    let inputs = case::inputs(op, case)?;
    let mut lease = runner.lease()?;
    let q = lease.queue()?;
    let mut go = || -> Result<Vec<HostTensor>> {
        prepared.poison(q)?;
        let got = prepared.call(q, &inputs, deadline)?;
        prepared.check_guards(q)?;
        Ok(got)
    };
    let got = match go() {
        Ok(got) => got,
        Err(e) => {
            lease.discard();
            return if e.code() == Code::ResultWrong { Ok(Judged::Wrong(e.detail().into())) } else { Err(e) };
        }
    };
    let Some(expected) = Expected::new(op, case, lang, &inputs) else {
        return Ok(Judged::Unjudged(format!("no limit is published for {} in {lang:?}", case.dtype)));
    };
    Ok(match expected.first_wrong(&inputs, &got) {
        Some(why) => Judged::Wrong(why),
        None => Judged::Right(expected.elements()),
    })
}

/// What would be built for a plan, each text once. Empty for a plan without launches, and for what the queue does itself.
///
/// Errors: `Internal` for a text that cannot be put together.
pub fn programs(op: &OpDesc, case: &Case, choice: &Choice, info: &DeviceInfo) -> Result<Vec<Program>> {
    let mut all: Vec<Program> = Vec::new();
    for step in &choice.plan.steps {
        let identity = |what: String| rng::fnv1a64(what.as_bytes());
        let text = match choice.kernel.body {
            Body::C(_) | Body::Opencl(_) | Body::Cuda(_) | Body::Wgsl(_) => {
                source::assemble(choice.kernel, step, choice.lang)?.hash()
            }
            // No compiler but the one that made this program is between its text and the device.
            Body::Native(_) => identity(format!("native {} {} {}", step.entry, step.dtype, this_build())),
            Body::Routine(r) => identity(format!("routine {r:?} {} {:?}", step.dtype, info.libraries)),
            Body::Action(_) => continue,
        };
        let program = Program { op: op.name.into(), variant: choice.kernel.variant.into(), dtype: case.dtype, text };
        if !all.contains(&program) {
            all.push(program);
        }
    }
    Ok(all)
}

/// What is wrong with the kernel that a case takes on a device (this variant, if one is named), if anything is known or found
/// to be.
///
/// What nobody has tried on this device and driver is tried now. What cannot be judged is used, and the log says so.
/// Errors: those of running the small case; they say nothing about the kernel, and the next call tries again.
pub fn first_use(
    trials: &Trials,
    runner: &Runner,
    op: &'static OpDesc,
    case: &Case,
    variant: Option<&str>,
) -> Result<Option<Fault>> {
    let info = runner.device().info();
    let choice = kernel::choose(op.kernels, case, info, variant)?;
    let wanted = programs(op, case, &choice, info)?;
    let fault = |program: &Program| match trials.ask(info, program) {
        Some(Known { verdict: Verdict::Wrong { case, found }, when }) => {
            Some(Fault { program: program.clone(), case, found, when })
        }
        _ => None,
    };
    // What is known to be wrong is not asked for by the trial of another text that runs beside it.
    if let Some(fault) = wanted.iter().find_map(fault) {
        return Ok(Some(fault));
    }
    for program in &wanted {
        if trials.ask(info, program).is_none() {
            try_now(trials, runner, op, case, program, &wanted)?;
            if trials.ask(info, program).is_none() {
                return Err(Error::new(Code::Internal, "a trial left no verdict"));
            }
        }
        if let Some(fault) = fault(program) {
            return Ok(Some(fault));
        }
    }
    Ok(None)
}

/// Tries one text, with all those that its case takes besides, and notes the verdict.
fn try_now(
    trials: &Trials,
    runner: &Runner,
    op: &'static OpDesc,
    planned: &Case,
    program: &Program,
    wanted: &[Program],
) -> Result<()> {
    let info = runner.device().info();
    let Some(small) = small_case(op, planned, info, program, wanted)? else {
        let why = "no small case takes this text".to_string();
        log::warn!("{} on {}: {} is used untried: {why}", op.name, info.id, program.variant);
        trials.note(info, &[(program.clone(), Verdict::Unjudged { why })]);
        return Ok(());
    };
    let Small { case, choice, programs } = small;
    let verdict = match judge(runner, op, &case, choice, DEADLINE)? {
        Judged::Right(_) => Verdict::Passed { case: case.to_string() },
        Judged::Wrong(found) => Verdict::Wrong { case: case.to_string(), found },
        Judged::Unjudged(why) => {
            log::warn!("{} on {}: {} is used untried: {why}", op.name, info.id, program.variant);
            Verdict::Unjudged { why }
        }
    };
    // One wrong case is enough, however many are right.
    let wrong = |p: &Program| matches!(trials.ask(info, p), Some(Known { verdict: Verdict::Wrong { .. }, .. }));
    let all: Vec<_> = programs.into_iter().filter(|p| !wrong(p)).map(|p| (p, verdict.clone())).collect();
    trials.note(info, &all);
    Ok(())
}

/// Runs a small case of an op, in the very text that a call takes, and judges its results; whatever was noted of it before.
///
/// Errors: those of running it.
pub fn known_answer(runner: &Runner, op: &'static OpDesc, planned: &Case, deadline: Duration) -> Result<Judged> {
    let info = runner.device().info();
    let choice = kernel::choose(op.kernels, planned, info, None)?;
    let wanted = programs(op, planned, &choice, info)?;
    let Some(program) = wanted.first() else {
        return Ok(Judged::Unjudged("the call launches no kernel".into()));
    };
    match small_case(op, planned, info, program, &wanted)? {
        Some(small) => judge(runner, op, &small.case, small.choice, deadline),
        None => Ok(Judged::Unjudged("no small case takes the call's text".into())),
    }
}

/// A case for a trial.
struct Small {
    case: Case,
    choice: Choice,
    programs: Vec<Program>,
}

/// The smallest telling case whose kernel takes a text: of the op's smoke cases with the call's attributes, else with their
/// own, then of its other cases. One that takes texts that the call does not need comes last, for they would be
/// compiled for the trial alone.
fn small_case(
    op: &'static OpDesc,
    planned: &Case,
    info: &DeviceInfo,
    program: &Program,
    wanted: &[Program],
) -> Result<Option<Small>> {
    let own = CaseSpec {
        dims: planned.dims.iter().map(|(_, n)| *n).collect(),
        attrs: planned.attrs.clone(),
        fill: Fill::Uniform,
    };
    let mut rest = None;
    for tier in [Tier::Smoke, Tier::Full] {
        let mut cases: Vec<((bool, bool, u64), Case)> = Vec::new();
        for spec in op.specs(tier, planned.dtype).iter().chain([&own]).filter(|s| s.fill != Fill::Special) {
            for attrs in [&spec.attrs, &planned.attrs] {
                let Ok(case) = op.case(planned.dtype, &spec.dims, attrs.clone(), spec.fill) else { continue };
                if let Some(elements) = elements(op, &case) {
                    cases.push(((elements < TELLING, case.attrs != planned.attrs, elements), case));
                }
            }
        }
        cases.sort_by_key(|(rank, _)| *rank);
        for (_, case) in cases {
            let Ok(choice) = kernel::choose(op.kernels, &case, info, Some(&program.variant)) else { continue };
            let programs = programs(op, &case, &choice, info)?;
            if !programs.contains(program) {
                continue;
            }
            let small = Small { programs, case, choice };
            if small.programs.iter().all(|p| wanted.contains(p)) {
                return Ok(Some(small));
            }
            rest.get_or_insert(small);
        }
    }
    Ok(rest)
}

/// Elements of all operands, if there are some and the oracle is soon done with them.
fn elements(op: &OpDesc, case: &Case) -> Option<u64> {
    // Also rules out counts beyond 64 bits.
    op.total_bytes(case)?;
    let shapes = (op.shapes)(case).ok()?;
    let count = |i: usize| shapes[i].iter().product::<u64>();
    let all: u64 = (0..shapes.len()).map(count).sum();
    let few = all <= MOST_ELEMENTS && (op.cost)(case).flops <= MOST_FLOPS;
    (few && op.written().any(|i| count(i) > 0)).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attr, Attrs, Backend, DType, DeviceClass, Lang};
    use crate::op::find;

    fn pocl() -> DeviceInfo {
        DeviceInfo { class: DeviceClass::Software, max_group: 4096, ..DeviceInfo::ordinary_gpu() }
    }

    fn small(op: &str, dims: &[u64], attrs: Attrs, info: &DeviceInfo) -> Vec<Option<String>> {
        let op = find(op).unwrap();
        let case = op.case(DType::F32, dims, attrs, Fill::Uniform).unwrap();
        let choice = kernel::choose(op.kernels, &case, info, None).unwrap();
        let wanted = programs(op, &case, &choice, info).unwrap();
        let of = |p: &Program| small_case(op, &case, info, p, &wanted).unwrap().map(|s| s.case.to_string());
        wanted.iter().map(of).collect()
    }

    #[test]
    fn a_trial_is_small_and_takes_the_calls_own_text() {
        let gpu = DeviceInfo::ordinary_gpu();
        let one = |op: &str, dims: &[u64], attrs: Attrs| small(op, dims, attrs, &gpu)[0].clone().unwrap();
        assert_eq!(one("add", &[1 << 24], Attrs::new()), "add/f32/n60/-/uniform");
        assert_eq!(one("relu", &[1 << 24], Attrs::new()), "relu/f32/n257/-/uniform");
        // The call's own layout of the operands, though the text is one for all, and never a single element.
        let turned = Attrs::new().with("transA", Attr::Int(1));
        let (plain, turned) = (one("gemm", &[512, 512, 512], Attrs::new()), one("gemm", &[512, 512, 512], turned));
        assert!(!plain.contains("trans") && turned.contains("transA=1"), "{plain} {turned}");
        // Long rows take several texts; each is tried.
        let texts = small("layernorm", &[1, 600_000], Attrs::new(), &gpu);
        assert!(texts.len() > 1 && texts.iter().all(Option::is_some), "{texts:?}");
    }

    /// Nearly every text that a case of the full tier takes has a trial; those without are of extreme shapes.
    #[test]
    fn few_texts_have_no_trial() {
        let wgpu = DeviceInfo { langs: vec![Lang::Wgsl], backend: Backend::Wgpu, ..DeviceInfo::ordinary_gpu() };
        let (mut with, mut without) = (0, Vec::new());
        for (info, ops) in [
            (DeviceInfo::ordinary_gpu(), ["gemm", "conv2d", "softmax", "sum", "add", "exp"]),
            (pocl(), ["gemm", "conv2d", "layernorm", "mean", "maxpool2d", "relu"]),
            (wgpu, ["gemm", "bmm", "softmax", "max", "transpose", "cast"]),
        ] {
            for op in ops.map(|o| find(o).unwrap()) {
                let mut seen = Vec::new();
                for spec in op.specs(Tier::Full, DType::F32) {
                    let case = op.case(DType::F32, &spec.dims, spec.attrs, Fill::Uniform).unwrap();
                    let Ok(choice) = kernel::choose(op.kernels, &case, &info, None) else { continue };
                    let wanted = programs(op, &case, &choice, &info).unwrap();
                    for p in &wanted {
                        if seen.contains(p) {
                            continue;
                        }
                        seen.push(p.clone());
                        match small_case(op, &case, &info, p, &wanted).unwrap() {
                            Some(s) => {
                                assert!(elements(op, &s.case).is_some_and(|n| n > 0), "{}", s.case);
                                with += 1;
                            }
                            None => without.push(format!("{case} {}", p.variant)),
                        }
                    }
                }
            }
        }
        assert!(with > 50 && without.len() * 50 < with, "{with} with, without: {without:?}");
    }

    /// However many parts a long row is cut into, they are joined by a text that a small case takes, too.
    #[test]
    fn long_reductions_take_texts_that_have_a_trial() {
        let wgpu = DeviceInfo { langs: vec![Lang::Wgsl], backend: Backend::Wgpu, ..DeviceInfo::ordinary_gpu() };
        for info in [DeviceInfo { compute_units: 132, ..DeviceInfo::ordinary_gpu() }, wgpu] {
            for op in ["sum", "mean", "max", "argmin", "dot", "nrm2"].map(|o| find(o).unwrap()) {
                for (dtype, n) in [(DType::F32, 1 << 16), (DType::F32, 1 << 24), (DType::F16, 1 << 24)] {
                    let dims = if op.dims.len() == 1 { vec![n] } else { vec![1, n, 1] };
                    let case = op.case(dtype, &dims, Default::default(), Fill::Uniform).unwrap();
                    let choice = kernel::choose(op.kernels, &case, &info, None).unwrap();
                    let wanted = programs(op, &case, &choice, &info).unwrap();
                    for p in &wanted {
                        assert!(small_case(op, &case, &info, p, &wanted).unwrap().is_some(), "{case} {p:?}");
                    }
                }
            }
        }
    }

    /// With several stretches a work-item's second look would be at other numbers than its first, and some would count twice.
    #[test]
    fn squares_are_summed_in_one_stretch_on_a_gpu() {
        let op = find("nrm2").unwrap();
        let case = op.case(DType::F32, &[2000], Default::default(), Fill::Uniform).unwrap();
        let choice = kernel::choose(op.kernels, &case, &DeviceInfo::ordinary_gpu(), None).unwrap();
        let squares = choice.plan.steps.iter().find(|s| s.entry == "squares_part").unwrap();
        assert!(squares.defines.contains(&("STRETCHES".to_string(), "1".to_string())), "{:?}", squares.defines);
    }

    /// A text that was found wrong by one case computes right in others: that is no reason to use it.
    #[test]
    fn another_trial_makes_no_wrong_text_right() {
        let device =
            crate::device::cpu::CpuDevice::new(1, kernel::Isa::detect(), crate::device::cpu::Pin::Free).unwrap();
        let runner = Runner::new(std::sync::Arc::new(device));
        let (trials, op) = (Trials::default(), find("exp").unwrap());
        let case = op.case(DType::F32, &[1 << 20], Attrs::new(), Fill::Uniform).unwrap();
        let info = runner.device().info();
        let choice = kernel::choose(op.kernels, &case, info, None).unwrap();
        let wanted = programs(op, &case, &choice, info).unwrap();
        assert_eq!(first_use(&trials, &runner, op, &case, None).unwrap(), None, "tried now, and right");
        assert!(matches!(trials.ask(info, &wanted[0]).unwrap().verdict, Verdict::Passed { .. }));
        let wrong = Verdict::Wrong { case: "exp/f32/n7/-/wide".into(), found: "2 instead of 3".into() };
        trials.note(info, &[(wanted[0].clone(), wrong.clone())]);
        try_now(&trials, &runner, op, &case, &wanted[0], &wanted).unwrap();
        assert_eq!(trials.ask(info, &wanted[0]).unwrap().verdict, wrong);
        assert!(first_use(&trials, &runner, op, &case, None).unwrap().is_some());
    }
}
