//! Mutation score of `verify`: single-token mutants of every C kernel text run on an OpenCL device, in worker processes
//! with a time limit. A mutant that no case notices is a hole in the cases or in the judge, or changes nothing.
//!
//! `cargo test --test mutation` takes a small sample, `MUTANTS=1000 cargo test --test mutation -- --nocapture` a large one
//! (half an hour on two cores), `MUTANT='norm.c: < at' ...` those whose name contains that; with MUTANTS_LIST set the sample is
//! printed and none is tried. Mutants that compute the same
//! as the original are listed with the argument in equivalent.txt; at most 8 of 100 may be, and of the rest 97 of 100 must
//! be caught.

#![cfg(feature = "opencl")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the score and skips are for people")]

mod mutants;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{Case, DType, Env, Lang};
use gpuctl::device::DEADLINE;
use gpuctl::device::cpu::Pin;
use gpuctl::device::probe::{self, CpuConfig, Rig, Select};
use gpuctl::device::spoilt::Spoilt;
use gpuctl::engine::{Guard, Runner};
use gpuctl::jobs::verify::{self, Mutant, VerifyConfig};
use gpuctl::kernel::{self, Body, Choice, Kernel};
use gpuctl::op::{self, OpDesc, Tier, case};

use mutants::{Change, changes, changes_of_value, definitions, words_of};

/// How long and how much a mutant is tried. One that took this long without being caught has survived.
struct Patience {
    /// Time after which a worker tries no further case.
    enough: Duration,
    /// Longest time, compilation included; a mutant that takes longer hangs. Far longer, so that slowness never passes for
    /// a hang.
    limit: Duration,
    /// Most ops and dtypes.
    groups: usize,
    /// Most cases.
    cases: usize,
}

/// The first try, and that of survivors which are not listed.
const PATIENCE: [Patience; 2] = [
    Patience { enough: Duration::from_secs(8), limit: Duration::from_secs(40), groups: 8, cases: 80 },
    Patience { enough: Duration::from_secs(60), limit: Duration::from_secs(120), groups: 20, cases: 600 },
];
/// Bytes of operands of the largest case: some results are larger than a core's cache, and stored past it.
const SMALL: u64 = 10 << 20;
/// What Oclgrind simulates of a survivor: a case takes as long as hundreds elsewhere, so few kinds of them, but from the
/// smallest to those with whole tiles.
const SIMULATED: Patience =
    Patience { enough: Duration::from_secs(20), limit: PATIENCE[0].limit, groups: 3, cases: 80 };
/// Sample without MUTANTS.
const FEW: usize = 16;

macro_rules! texts {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../../kernels/", $name)))),*] };
}

/// Every C text, as it was when this was built.
const FILES: &[(&str, &str)] = texts![
    "activation.c",
    "bias.c",
    "bias_sum.c",
    "cast.c",
    "cast_f64_half.c",
    "cast_int_half.c",
    "conv.c",
    "elementwise.c",
    "extreme.c",
    "matmul.c",
    "matmul_vector.c",
    "micro.c",
    "movement.c",
    "norm.c",
    "opencl/bias_vectors.cl",
    "opencl/elementwise_vectors.cl",
    "opencl/matmul_blocks.cl",
    "opencl/movement_vectors.cl",
    "opencl/norm_vectors.cl",
    "opencl/pool_vectors.cl",
    "opencl/stream_vectors.cl",
    "peak.c",
    "pool.c",
    "reduce.c",
    "stream.c",
];

/// A kernel text and the cases that try its mutants.
struct Subject {
    file: String,
    text: &'static str,
    cases: Vec<Trial>,
}

/// A case with what its plan defines for the text, and the names that its launches reach.
struct Trial {
    op: &'static OpDesc,
    case: Case,
    /// On a device that says it is a GPU, or on the processor that it is.
    gpu: bool,
    /// Whether just as many groups are launched as there is work for.
    exact: bool,
    defines: Vec<(String, String)>,
    reached: BTreeSet<String>,
}

/// All kernels, functions and macros that these entries use.
fn reached(text: &str, entries: &[&str], defines: &[(String, String)]) -> BTreeSet<String> {
    let mut uses: HashMap<String, Vec<String>> = definitions(text).into_iter().collect();
    for (name, value) in defines {
        let name = words_of(name).next().unwrap_or_default();
        uses.entry(name).or_default().extend(words_of(value));
    }
    let mut found = BTreeSet::new();
    let mut open: Vec<String> = entries.iter().map(|e| (*e).to_string()).collect();
    while let Some(name) = open.pop() {
        if let Some(words) = uses.get(&name)
            && found.insert(name)
        {
            open.extend(words.iter().cloned());
        }
    }
    found
}

impl Subject {
    /// Every mutant: those of the text, then those of the values that planners define for it and that it uses: rules of
    /// numbers, say, are defined for all texts of elementwise ops, and each uses some.
    fn changes(&self) -> Vec<Change> {
        let mut out = changes(self.text);
        let defines: BTreeSet<_> = self.cases.iter().flat_map(Trial::used).collect();
        out.extend(defines.into_iter().flat_map(|(name, value)| changes_of_value(name, value)));
        out
    }

    /// Cases that run what a change is in: by turns of every op and dtype. Of each the smallest first, then the middle one,
    /// those between, and so on: whatever the sizes that a change shows at, one is soon tried.
    fn trials(&self, change: &Change, patience: &Patience) -> Vec<&Trial> {
        let reached = |t: &&Trial| {
            t.reached.contains(&change.within) && change.defined.as_ref().is_none_or(|d| t.defines.contains(d))
        };
        let mut groups: BTreeMap<(&str, &str, bool), Vec<&Trial>> = BTreeMap::new();
        for t in self.cases.iter().filter(reached) {
            groups.entry((t.op.name, t.case.dtype.name(), t.gpu)).or_default().push(t);
        }
        for g in groups.values_mut() {
            let bits = usize::BITS - g.len().leading_zeros();
            let order = (0..1usize << bits).map(|i| i.reverse_bits() >> (usize::BITS - bits)).filter(|i| *i < g.len());
            *g = order.map(|i| g[i]).collect();
        }
        // What many ops run is tried with a few of them.
        let few = groups.len().min(patience.groups);
        let groups: Vec<_> = groups.into_values().collect();
        let groups: Vec<_> = (0..few).map(|i| &groups[i * groups.len() / few]).collect();
        let longest = groups.iter().map(|g| g.len()).max().unwrap_or(0);
        (0..longest).flat_map(|i| groups.iter().filter_map(move |g| g.get(i).copied())).take(patience.cases).collect()
    }
}

/// The device as it is and as a GPU would be planned for; few groups in a row and then as many as there are.
fn rigs(test: &str) -> Option<[Rig; 4]> {
    Some([rig(test, false, false)?, rig(test, true, false)?, rig(test, false, true)?, rig(test, true, true)?])
}

impl Trial {
    /// What is defined with arguments and used.
    fn used(&self) -> impl Iterator<Item = &(String, String)> {
        let used = |name: &str| words_of(name).next().is_some_and(|word| self.reached.contains(&word));
        self.defines.iter().filter(move |(name, _)| name.contains('(') && used(name))
    }

    fn rig<'a>(&self, rigs: &'a [Rig; 4]) -> &'a Rig {
        &rigs[usize::from(self.gpu) + 2 * usize::from(self.exact)]
    }

    /// The mutant's launches on operands that begin and end where their buffers do (up to 15 bytes), as in tests/races.rs: the
    /// guards of `verify` would hide what is read beyond them. One that does not build or run is no finding.
    fn run_bare(&self, rigs: &[Rig; 4], mutant: Mutant) {
        let device = &self.rig(rigs).devices[0];
        let choice = kernel::choose(self.op.kernels, &self.case, device.info(), None).unwrap();
        let body = match choice.kernel.body {
            Body::C(text) if text == mutant.replaces => Body::C(mutant.with),
            Body::Opencl(text) if text == mutant.replaces => Body::Opencl(mutant.with),
            // A device with less memory may choose another kernel.
            _ => return,
        };
        let kernel = Box::leak(Box::new(Kernel { body, ..*choice.kernel }));
        let runner = Runner::new(Arc::clone(device));
        let inputs = case::inputs(self.op, &self.case).unwrap();
        let run = || {
            let prepared =
                runner.prepare_choice(self.op, &self.case, Choice { kernel, ..choice }, Guard { head: 0, tail: 0 })?;
            prepared.call(runner.lease()?.queue()?, &inputs, DEADLINE)
        };
        let _: gpuctl::base::Result<_> = run();
    }
}

fn rig(test: &str, gpu: bool, exact: bool) -> Option<Rig> {
    let env = Env::read().unwrap();
    match probe::open(&Select::Named(vec!["opencl:0".into()]), &env, CpuConfig { threads: 1, pin: Pin::Free }) {
        Ok(mut rig) => {
            let device = Arc::clone(&rig.devices[0]);
            let mut device = match gpu {
                // A GPU's plans: several elements per work-item, tiles in local memory.
                true => Spoilt::as_gpu(device),
                false => Spoilt::new(device, u64::MAX, |_, _| {}),
            };
            // Few groups in a row, so that flat numbers are spread over two axes and some groups find nothing to do; they
            // could do what another group left undone, so there are trials without them, too.
            if !exact {
                device.info_mut().max_groups[0] = 4;
            }
            rig.devices[0] = Arc::new(device);
            Some(rig)
        }
        Err(e) => {
            assert!(!env.require.iter().any(|b| b == "opencl"), "GPUCTL_REQUIRE names opencl, but: {e}");
            eprintln!("skipped: mutation::{test}: {e}");
            None
        }
    }
}

/// Every C text with cases that together launch each of its entries in every kind of dtype.
fn subjects(rigs: &[Rig; 4]) -> Vec<Subject> {
    let mut by_file: BTreeMap<String, Subject> = BTreeMap::new();
    for op in op::all() {
        for dtype in op.dtypes {
            // One dtype of each kind: the texts differ by nothing else.
            if !matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::BF16 | DType::U8) {
                continue;
            }
            for spec in op.specs(Tier::Full, *dtype) {
                let case = op.case(*dtype, &spec.dims, spec.attrs, spec.fill).unwrap();
                if op.total_bytes(&case).is_none_or(|b| b > SMALL) {
                    continue;
                }
                for gpu in [true, false] {
                    let info = rigs[usize::from(gpu)].devices[0].info();
                    let Ok(choice) = kernel::choose(op.kernels, &case, info, None) else { continue };
                    let (Body::C(text) | Body::Opencl(text), Lang::OpenclC) = (choice.kernel.body, choice.lang) else {
                        continue;
                    };
                    if choice.plan.steps.is_empty() {
                        continue;
                    }
                    let (file, _) = FILES.iter().find(|f| f.1 == text).expect("a C text that FILES lacks");
                    let file = (*file).to_string();
                    let subject =
                        by_file.entry(file.clone()).or_insert_with(|| Subject { file, text, cases: Vec::new() });
                    let entries: Vec<_> = choice.plan.steps.iter().map(|s| s.entry).collect();
                    let mut defines: Vec<_> = choice.plan.steps.iter().flat_map(|s| s.defines.clone()).collect();
                    if !choice.kernel.expr.is_empty() {
                        defines.push(("EXPR(x, b)".into(), format!("({})", choice.kernel.expr)));
                    }
                    let reached = reached(text, &entries, &defines);
                    subject.cases.push(Trial { op, case: case.clone(), gpu, exact: false, defines, reached });
                }
            }
        }
    }
    let mut all: Vec<Subject> = by_file.into_values().collect();
    for s in &mut all {
        // The smallest first: most mutants fall at once. Empty ones last, they try nothing.
        s.cases.sort_by_key(|t| match (t.op.work)(&t.case) {
            0 => u128::MAX,
            work => work,
        });
        let mut turns: BTreeMap<(&str, &str, bool), bool> = BTreeMap::new();
        for t in &mut s.cases {
            let turn = turns.entry((t.op.name, t.case.dtype.name(), t.gpu)).or_default();
            t.exact = *turn;
            *turn = !*turn;
        }
    }
    all
}

/// The worker: reads `file index patience` lines, answers `caught CASE` or `survived`. Under Oclgrind nothing is judged: what
/// it finds is in its log.
#[test]
#[ignore = "started by other tests"]
fn worker() {
    let Some(rigs) = rigs("worker") else { return };
    let subjects = subjects(&rigs);
    let bare = std::env::var_os("OCLGRIND_LOG").is_some();
    println!("\nready");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let [file, index, patience] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let patience = if bare { &SIMULATED } else { &PATIENCE[patience.parse::<usize>().unwrap()] };
        let subject = subjects.iter().find(|s| s.file == file).unwrap();
        let change = &subject.changes()[index.parse::<usize>().unwrap()];
        let with: &'static str = Box::leak(change.apply(subject.text).into_boxed_str());
        let mutant = Mutant { replaces: subject.text, with };
        let start = Instant::now();
        let mut caught = None;
        for t in subject.trials(change, patience) {
            if bare {
                t.run_bare(&rigs, mutant);
            } else {
                let cfg = VerifyConfig { case: Some(t.case.clone()), mutant: Some(mutant), ..VerifyConfig::default() };
                let mut sink = Collect::default();
                if verify::run(&cfg, t.rig(&rigs), &mut sink, &Cancel::new()).is_ok_and(|s| s.failed > 0) {
                    caught = Some(&t.case);
                    break;
                }
            }
            if start.elapsed() > patience.enough {
                break;
            }
        }
        match caught {
            Some(case) => println!("\ncaught {case}"),
            None => println!("\nsurvived"),
        }
    }
}

struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

/// Oclgrind as an OpenCL driver; a race need not change a result, but it is in its log.
const OCLGRIND: &str = "/usr/lib/oclgrind/liboclgrind-rt-icd.so";

impl Worker {
    fn start() -> Self {
        Self::spawn(&[])
    }

    fn spawn(environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "worker", "--nocapture", "--test-threads=1"])
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let (send, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let wanted = ["ready", "caught", "survived"].iter().any(|w| line.starts_with(w));
                if wanted && send.send(line).is_err() {
                    break;
                }
            }
        });
        let worker = Worker { child, stdin, lines };
        assert_eq!(worker.lines.recv_timeout(Duration::from_secs(60)).as_deref(), Ok("ready"));
        worker
    }

    /// `caught`, `survived`, `crash` or `hang`; after the last two the worker is gone.
    fn run(&mut self, file: &str, index: usize, patience: usize) -> String {
        if writeln!(self.stdin, "{file} {index} {patience}").is_err() {
            return "crash".into();
        }
        match self.lines.recv_timeout(PATIENCE[patience].limit) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => "crash".into(),
            Err(RecvTimeoutError::Timeout) => "hang".into(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// True if Oclgrind's simulation of a mutant finds a race or an access outside of an operand, which need not change a result;
/// `None` without Oclgrind. tests/races.rs is that check of the originals.
fn races(file: &str, index: usize) -> Option<bool> {
    if !std::path::Path::new(OCLGRIND).exists() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let log_path = log.to_string_lossy().into_owned();
    let mut worker = Worker::spawn(&[
        ("OCL_ICD_VENDORS", OCLGRIND),
        ("OCLGRIND_LOG", &log_path),
        ("OCLGRIND_DATA_RACES", "1"),
        ("OCLGRIND_MAX_ERRORS", "5"),
        // As in tests/races.rs; without optimisation, or what lies outside of a private array is left out by the compiler.
        ("OCLGRIND_LOCAL_MEM_SIZE", "1048576"),
        ("OCLGRIND_BUILD_OPTIONS", "-cl-opt-disable"),
        ("GPUCTL_CACHE", "off"),
    ]);
    worker.run(file, index, 0);
    let says = ["data race", "Invalid ", "exceeds static array size"];
    Some(std::fs::read_to_string(&log).is_ok_and(|l| says.iter().any(|s| l.contains(s))))
}

/// `file: token at line:column -> token` of every mutant that equals the original, with the argument.
fn equivalent() -> BTreeMap<String, String> {
    let lines = include_str!("equivalent.txt").lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines
        .map(|l| {
            let (name, why) = l.split_once(" :: ").unwrap_or_else(|| panic!("no argument: {l}"));
            assert!(why.len() > 20, "no argument: {l}");
            (name.to_string(), why.to_string())
        })
        .collect()
}

/// Text that no case runs is text without a judge, and likely without a user: another variant has taken its place.
#[test]
fn every_function_of_the_texts_is_run() {
    let Some(rigs) = rigs("every_function_of_the_texts_is_run") else { return };
    let subjects = subjects(&rigs);
    assert_eq!(subjects.len(), FILES.len(), "a text of FILES that no case runs");
    let mut idle = BTreeSet::new();
    for s in &subjects {
        for change in s.changes() {
            if !s.cases.iter().any(|t| t.reached.contains(&change.within)) {
                idle.insert(format!("{}: {}", s.file, change.within));
            }
        }
    }
    assert!(idle.is_empty(), "nothing runs {idle:?}");
    let dead = "KERNEL(f)(u64 n) {\n    used(n);\n}\nKERNEL(g)(u64 n) {\n    used(n);\n}\n#define used(n) (n + 1)\n";
    assert_eq!(reached(dead, &["f"], &[]), ["f", "used"].map(str::to_string).into());
}

#[test]
fn verify_catches_mutants() {
    let Some(rigs) = rigs("verify_catches_mutants") else { return };
    let subjects = subjects(&rigs);
    assert!(subjects.len() >= 5, "{} texts", subjects.len());
    let known = equivalent();
    let mut all: Vec<(String, usize, Change)> = Vec::new();
    for s in &subjects {
        all.extend(s.changes().into_iter().enumerate().map(|(i, c)| (s.file.clone(), i, c)));
    }
    let names: Vec<String> = all.iter().map(|(f, _, c)| c.name(f)).collect();
    let stale: Vec<_> = known.keys().filter(|k| !names.contains(k)).collect();
    assert!(stale.is_empty(), "equivalent.txt names mutants that do not exist (any more): {stale:?}");
    let total = all.len();
    let count = std::env::var("MUTANTS").ok().and_then(|n| n.parse().ok()).unwrap_or(FEW).min(total);
    // An even sample over all texts, the same every time; or all whose name contains one of these lines.
    let sample: Vec<_> = match std::env::var("MUTANT") {
        Ok(words) => (0..total).filter(|i| words.lines().any(|w| names[*i].contains(w))).collect(),
        Err(_) => (0..count).map(|i| i * total / count).collect(),
    };
    let count = sample.len();
    if std::env::var_os("MUTANTS_LIST").is_some() {
        sample.iter().for_each(|i| println!("{}    {}", names[*i], all[*i].2.line.trim()));
        return;
    }
    let queue = Arc::new(Mutex::new(sample.into_iter().rev().collect::<Vec<usize>>()));
    let results = Arc::new(Mutex::new(BTreeMap::<usize, String>::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut worker = Worker::start();
                while let Some(at) = { queue.lock().unwrap().pop() } {
                    let (file, index, _) = &all[at];
                    let mut outcome = String::new();
                    for patience in 0..PATIENCE.len() {
                        outcome = worker.run(file, *index, patience);
                        if outcome == "crash" || outcome == "hang" {
                            worker = Worker::start();
                            // A worker that died of an earlier mutant's damage must not count for this one.
                            if outcome == "crash" {
                                outcome = worker.run(file, *index, patience);
                                if outcome == "crash" || outcome == "hang" {
                                    worker = Worker::start();
                                }
                            }
                        }
                        if outcome == "survived" && patience == 0 && races(file, *index) == Some(true) {
                            outcome = "oclgrind".into();
                        }
                        if outcome != "survived" || known.contains_key(&names[at]) {
                            break;
                        }
                    }
                    if outcome == "survived" && !known.contains_key(&names[at]) {
                        println!("survived so far  {}", names[at]);
                    }
                    let mut results = results.lock().unwrap();
                    results.insert(at, outcome);
                    if results.len().is_multiple_of(100) {
                        let survived =
                            results.iter().filter(|(i, o)| *o == "survived" && !known.contains_key(&names[**i]));
                        println!("{} of {count}, {} survived so far", results.len(), survived.count());
                    }
                }
            });
        }
    });
    let results = results.lock().unwrap();
    let mut tally: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut survivors, mut wrongly) = (Vec::new(), Vec::new());
    for (at, outcome) in results.iter() {
        let name = &names[*at];
        let word = outcome.split(' ').next().unwrap_or("");
        let word = match (word, known.contains_key(name)) {
            ("survived", true) => "equivalent",
            (word, listed) => {
                if listed {
                    wrongly.push(format!("{name}: {outcome}"));
                }
                word
            }
        };
        *tally.entry(word).or_default() += 1;
        if word == "survived" {
            survivors.push(format!("{name}    {}", all[*at].2.line));
        }
    }
    println!("{count} of {total} mutants of {} texts: {tally:?}", subjects.len());
    for s in &survivors {
        println!("survived  {s}");
    }
    assert!(wrongly.is_empty(), "listed as equivalent, but caught:\n{}", wrongly.join("\n"));
    let equal = tally.get("equivalent").copied().unwrap_or(0);
    assert_eq!(results.len(), count);
    // Of a few any share may be listed: the list itself is far shorter than 8 of 100 of all mutants.
    assert!(known.len() * 100 <= total * 8, "{} of {total} are listed as equivalent", known.len());
    assert!(count < 200 || equal * 100 <= count * 8, "{equal} of {count} are listed as equivalent");
    assert!(survivors.len() * 100 <= (count - equal) * 3, "{} of {} survived", survivors.len(), count - equal);
}
