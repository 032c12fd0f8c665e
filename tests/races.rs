//! Every C kernel under Oclgrind, which simulates OpenCL devices: no data race, no access out of bounds, no use of memory
//! that nobody wrote. The kernels' plans are those of a GPU, so this is also what carries over to CUDA without a card, and in one
//! dtype those of a processor.
//!
//! Oclgrind ends with 0 whatever it finds, so its log is read; a planted fault of each kind must be in it.
//! Debian's package `oclgrind` has the library; without it the tests say that they skip, with `oclgrind` in
//! GPUCTL_REQUIRE they fail.

#![cfg(feature = "opencl")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a child tells its parent what it ran")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use gpuctl::base::{Case, DType, Env, Fill, Lang};
use gpuctl::device::cpu::Pin;
use gpuctl::device::probe::{self, CpuConfig, Select};
use gpuctl::device::spoilt::Spoilt;
use gpuctl::device::{DEADLINE, Device};
use gpuctl::engine::{Guard, Runner};
use gpuctl::kernel::{self, Body, Choice, Kernel, Step};
use gpuctl::op::{self, OpDesc, Tier, case};

/// Where Debian and others install it.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/oclgrind/liboclgrind-rt-icd.so",
    "/usr/local/lib/oclgrind/liboclgrind-rt-icd.so",
    "/usr/lib64/oclgrind/liboclgrind-rt-icd.so",
];

/// Processes that share the work: one per processor of a small machine.
const HALVES: usize = 2;

/// Whether a launch shuffles vectors: by this function, or as pooling takes every second pixel. Oclgrind 21.10 confuses which
/// elements of shuffled vectors were written (some shuffles make it crash): these are run without that check, in a part of
/// their own.
fn shuffles(text: &str, step: &Step) -> bool {
    text.contains("__builtin_shufflevector") || step.defines.iter().any(|(name, value)| name == "LANE" && value == "2")
}

/// Faults planted into a text: what Oclgrind must say, the case, the place.
const PLANTED: [(&str, &str, &str, &str); 5] = [
    ("data race", "transpose/f32/m33,n65/-/uniform", "    BARRIER();\n", ""),
    ("Invalid read", "relu/f32/n257/-/uniform", "if (WITHIN(i, n))", "if (i < n + 4096)"),
    ("Uninitialized", "sum/f32/outer3,n100,inner1/-/uniform", "= (ACC)0;", ";"),
    // By a group behind the last problem.
    ("Invalid read", "bmm/f32/b5,m4,n4,k4/-/uniform", "batch < batches ? k : 0", "batch <= batches ? k : 0"),
    // Within the memory of all arrays, beyond one of them.
    (
        "exceeds static array size",
        "gemm/f32/m5,n4,k4/-/uniform",
        "j < RN; j++) {\n            acc",
        "j <= RN; j++) {\n            acc",
    ),
];

/// The device as the plans of a GPU need it, and as the processor that it says to be.
fn devices() -> [Arc<dyn Device>; 2] {
    let config = CpuConfig { threads: 1, pin: Pin::Free };
    let rig = probe::open(&Select::Named(vec!["opencl:0".into()]), &Env::read().unwrap(), config).unwrap();
    let device = &rig.devices[0];
    assert!(device.info().name.contains("Oclgrind"), "{}", device.info().name);
    let mut gpu = Spoilt::as_gpu(Arc::clone(device));
    // Few groups in a row: some more are launched than there is work for, and what those read must lie inside, too.
    gpu.info_mut().max_groups[0] = 4;
    [Arc::new(gpu), Arc::clone(device)]
}

/// The plans of both, in words.
const PLANS: [&str; 2] = ["gpu", "processor"];

/// Runs one case. Operands begin and end where their buffers do (up to 15 bytes), so that an overrun leaves the buffer.
fn run(runner: &Runner, op: &'static OpDesc, c: &Case, choice: Choice) {
    let inputs = case::inputs(op, c).unwrap();
    let prepared = runner.prepare_choice(op, c, choice, Guard { head: 0, tail: 0 }).unwrap();
    let mut lease = runner.lease().unwrap();
    prepared.call(lease.queue().unwrap(), &inputs, DEADLINE).unwrap();
}

/// Dtypes whose elements lie in memory in the same way: of such a pair one stands for both, the first for every second op.
const TWINS: [[DType; 2]; 5] = [
    [DType::I8, DType::U8],
    [DType::I16, DType::U16],
    [DType::I32, DType::U32],
    [DType::I64, DType::U64],
    [DType::F16, DType::BF16],
];

fn twin_stands_for(op: &OpDesc, dtype: DType) -> bool {
    let Some(pair) = TWINS.iter().find(|p| p.contains(&dtype)) else { return false };
    let both = pair.iter().all(|d| op.dtypes.contains(d));
    let at = op::all().position(|o| o.name == op.name).unwrap_or(0);
    both && pair[at % 2] != dtype
}

/// Small cases of every op and of every dtype or its twin with every C variant; or one planted fault, named by GPUCTL_TEST_PLANTED.
#[test]
#[ignore = "started by other tests"]
fn worker() {
    let devices = devices();
    let runners = devices.clone().map(Runner::new);
    let (device, runner) = (&devices[0], &runners[0]);
    let planted = std::env::var("GPUCTL_TEST_PLANTED").ok().and_then(|n| n.parse::<usize>().ok());
    if let Some((_, name, from, to)) = planted.map(|i| PLANTED[i]) {
        let c = case::parse(name).unwrap();
        let op = op::find(c.op).unwrap();
        let choice = kernel::choose(op.kernels, &c, device.info(), None).unwrap();
        let Body::C(text) = choice.kernel.body else { panic!("{name}: no C kernel") };
        assert!(text.contains(from), "the text no longer has '{from}'");
        let body = Body::C(Box::leak(text.replacen(from, to, 1).into_boxed_str()));
        let kernel = Box::leak(Box::new(Kernel { body, ..*choice.kernel }));
        run(runner, op, &c, Choice { kernel, ..choice });
        println!("\nran 1");
        return;
    }
    if let Ok(alone) = std::env::var("GPUCTL_TEST_CASE") {
        let [name, variant, plan] = alone.split(' ').collect::<Vec<_>>()[..] else { panic!("{alone}") };
        let at = usize::from(plan == PLANS[1]);
        let c = case::parse(name).unwrap();
        let op = op::find(c.op).unwrap();
        let choice = kernel::choose(op.kernels, &c, devices[at].info(), Some(variant)).unwrap();
        run(&runners[at], op, &c, choice);
        println!("\nran 1");
        return;
    }
    let half: usize = std::env::var("GPUCTL_TEST_HALF").unwrap().parse().unwrap();
    let (skip, step) = if half == HALVES { (0, 1) } else { (half, HALVES) };
    let mine = |c: &Choice| match c.kernel.body {
        Body::C(_) => half < HALVES,
        Body::Opencl(text) => c.plan.steps.iter().any(|s| shuffles(text, s)) == (half == HALVES),
        _ => false,
    };
    // Every case of every dtype, for hours, instead of those in which the texts differ.
    let all = std::env::var_os("GPUCTL_TEST_ALL").is_some();
    let (mut ran, mut seen) = (0, 0);
    let mut entries = std::collections::BTreeSet::new();
    for op in op::all().skip(skip).step_by(step) {
        for dtype in op.dtypes {
            if !all && twin_stands_for(op, *dtype) {
                continue;
            }
            for (kernel, at) in op.kernels.iter().flat_map(|k| [(k, 0), (k, 1)]) {
                // A processor's plans in one dtype; those without groups of one work-item are a GPU's.
                let own = |c: &Choice| at == 0 || c.plan.steps.iter().any(|s| s.group == [1; 3]);
                if at == 1 && *dtype != op.dtypes[0] {
                    continue;
                }
                // All small cases of f32. Texts of other dtypes differ by types: so the largest case of each text that a
                // launch compiles (entry, defines, group).
                let mut choices: Vec<(Case, Choice)> = Vec::new();
                // Of one shape the first data and the special ones: what is read and written depends on little else.
                let mut shapes = std::collections::BTreeSet::new();
                for spec in op.specs(Tier::Smoke, *dtype) {
                    let c = op.case(*dtype, &spec.dims, spec.attrs, spec.fill).unwrap();
                    if (op.cost)(&c).flops.max((op.cost)(&c).read / 4) > 8_000 {
                        continue;
                    }
                    let Ok(choice) = kernel::choose(op.kernels, &c, devices[at].info(), Some(kernel.variant)) else {
                        continue;
                    };
                    let fits =
                        choice.lang == Lang::OpenclC && !choice.plan.steps.is_empty() && mine(&choice) && own(&choice);
                    let shape = (format!("{:?} {:?}", c.dims, c.attrs), c.fill == Fill::Special);
                    if fits && (shapes.insert(shape) || all) {
                        choices.push((c, choice));
                    }
                }
                choices.sort_by_key(|(c, _)| std::cmp::Reverse((op.work)(c)));
                let every = all || *dtype == DType::F32 && at == 0;
                let mut texts = std::collections::BTreeSet::new();
                for (c, choice) in choices {
                    let text = |s: &Step| format!("{} {:?} {:?}", s.entry, s.defines, s.group);
                    let new = choice.plan.steps.iter().filter(|s| texts.insert(text(s))).count();
                    if new == 0 && !every {
                        continue;
                    }
                    entries.extend(choice.plan.steps.iter().map(|s| format!("{} {}", op.name, s.entry)));
                    run(&runners[at], op, &c, choice);
                    ran += 1;
                    let log = std::env::var("OCLGRIND_LOG").unwrap();
                    let findings = std::fs::metadata(log).map_or(0, |m| m.len());
                    if findings > seen {
                        seen = findings;
                        println!("\nfinding in {c} {} {}", kernel.variant, PLANS[at]);
                    }
                }
            }
        }
    }
    println!("\nran {ran} with {} entries: {}", entries.len(), Vec::from_iter(entries).join(", "));
}

/// Runs the worker under Oclgrind; gives what it ran and the log.
fn under_oclgrind(test: &str, part: Part<'_>) -> Option<Found> {
    let Some(library) = LIBRARIES.iter().find(|p| Path::new(p).exists()) else {
        let required = Env::read().unwrap().require.iter().any(|r| r == "oclgrind");
        assert!(!required, "GPUCTL_REQUIRE lists oclgrind, but none of {LIBRARIES:?} exists");
        eprintln!("skipped: races::{test}: none of {LIBRARIES:?} exists (Debian: apt-get install oclgrind)");
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("oclgrind.log");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "worker", "--nocapture"])
        .env("OCL_ICD_VENDORS", library)
        .env("OCLGRIND_LOG", &log)
        .env("OCLGRIND_DATA_RACES", "1")
        .env("OCLGRIND_UNINITIALIZED", "1")
        .env("OCLGRIND_MAX_ERRORS", "50")
        // As much as PoCL has: with its usual 32 KiB kernels with larger tiles would never be chosen.
        .env("OCLGRIND_LOCAL_MEM_SIZE", "1048576")
        // With several threads it sometimes loses what it knows of memory that another group of work-items uses.
        .env("OCLGRIND_NUM_THREADS", "1")
        // Its check of uninitialised memory does not know an instruction that the optimiser makes (freeze).
        .env("OCLGRIND_BUILD_OPTIONS", "-cl-opt-disable")
        .env("GPUCTL_CACHE", "off")
        .env_remove("GPUCTL_REQUIRE");
    match part {
        Part::Half(half) => command.env("GPUCTL_TEST_HALF", half.to_string()),
        Part::Shuffles => command.env("GPUCTL_TEST_HALF", HALVES.to_string()).env_remove("OCLGRIND_UNINITIALIZED"),
        Part::Case(name) => command.env("GPUCTL_TEST_CASE", name),
        Part::Planted(i) => {
            if PLANTED[i].0 == "data race" {
                // What races here is also read before it is written, and those findings would fill the log first.
                command.env_remove("OCLGRIND_UNINITIALIZED");
            }
            command.env("GPUCTL_TEST_PLANTED", i.to_string())
        }
    };
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let ran = said.lines().find(|l| l.starts_with("ran ")).unwrap_or_else(|| panic!("the worker ran nothing: {said}"));
    let cases = said.lines().filter_map(|l| l.strip_prefix("finding in ")).map(str::to_string).collect();
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    Some(Found { ran: ran.to_string(), cases, log })
}

/// What a process has to do.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// Every so many-th op.
    Half(usize),
    /// Every op that has launches with shuffles, these alone.
    Shuffles,
    /// One case with one variant.
    Case(&'a str),
    /// A planted fault.
    Planted(usize),
}

/// What came of it: `ran N ..`, the cases during which the log grew, the log.
struct Found {
    ran: String,
    cases: Vec<String>,
    log: String,
}

#[test]
fn no_c_kernel_races_overruns_or_reads_what_nobody_wrote() {
    let name = "no_c_kernel_races_overruns_or_reads_what_nobody_wrote";
    let halves: Vec<_> = std::thread::scope(|scope| {
        let start = |half| scope.spawn(move || under_oclgrind(name, Part::Half(half)));
        let started: Vec<_> = (0..HALVES).map(start).collect();
        started.into_iter().map(|h| h.join().unwrap()).collect()
    });
    for found in halves.into_iter().flatten() {
        println!("{}", found.ran);
        let count: usize = found.ran.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        assert!(count > 300, "{}", found.ran);
        assert_eq!(found.cases.is_empty(), found.log.trim().is_empty(), "{}", found.log);
        // Oclgrind 21.10 mixes up what it knows of a buffer with what it knew of a freed one of the same number: only what
        // a process of its own finds again is a finding.
        for case in &found.cases {
            let again = under_oclgrind(name, Part::Case(case)).unwrap();
            let head: Vec<&str> = again.log.lines().take(60).collect();
            assert!(again.log.trim().is_empty(), "{case}\n{}", head.join("\n"));
            println!("not found again when run alone: {case}");
        }
    }
}

#[test]
fn no_kernel_with_shuffles_races_or_overruns() {
    let Some(found) = under_oclgrind("no_kernel_with_shuffles_races_or_overruns", Part::Shuffles) else { return };
    println!("{}", found.ran);
    let entries =
        ["transpose transpose_vectors", "transpose_inplace transpose_inplace_vectors", "maxpool2d maxpool2d_vectors"];
    assert!(entries.iter().all(|e| found.ran.contains(e)), "{}", found.ran);
    assert!(found.log.trim().is_empty(), "{}", found.log);
}

#[test]
fn a_planted_fault_of_each_kind_is_in_the_log() {
    for (i, (says, name, ..)) in PLANTED.iter().enumerate() {
        let Some(Found { log, .. }) = under_oclgrind("a_planted_fault_of_each_kind_is_in_the_log", Part::Planted(i))
        else {
            return;
        };
        assert!(log.contains(says), "{name}: no '{says}' in the log: {log}");
    }
}
