//! What can be known about CUDA without a GPU: every text of every op compiles to machine code for three generations
//! of chips, with the parameters that its plan passes and without spills; libraries are found where they lie; and a
//! machine without a driver gets a reason. Nothing here says that a kernel computes the right numbers.
//!
//! Needs NVRTC and ptxas below `target/cuda-compilers` (tests/fetch-cuda-compilers puts them there). Without them the
//! tests say that they skip; with `nvrtc` in GPUCTL_REQUIRE they fail.

#![cfg(feature = "cuda")]
#![allow(clippy::print_stderr, reason = "a skip must be seen")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpuctl::base::{Backend, Code, DType, DeviceClass, DeviceInfo, Env, Feature, Lang, Library};
use gpuctl::device::cuda::cubin::whole_cubin;
use gpuctl::device::cuda::libraries::{self, Nvrtc, Target};
use gpuctl::kernel::source::{self, PRELUDE_CL, PRELUDE_CU, Text};
use gpuctl::kernel::{self, Body, Param, Step};
use gpuctl::op::{self, Tier};

/// The chips whose machine code is made: Turing, Ampere, Hopper.
const CHIPS: [u32; 3] = [75, 80, 90];

fn compilers() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from);
    target.join("cuda-compilers")
}

fn required() -> bool {
    Env::read().unwrap().require.iter().any(|r| r == "nvrtc")
}

/// NVRTC, or the name of the skipped test on stderr.
fn nvrtc(test: &str) -> Option<Nvrtc> {
    let mut folders = libraries::wheels(&compilers());
    folders.extend(libraries::folders(&|n| std::env::var(n).ok(), Path::new("/")));
    match Nvrtc::find(u32::MAX, &folders) {
        Ok(nvrtc) => Some(nvrtc),
        Err(why) => {
            assert!(!required(), "GPUCTL_REQUIRE lists nvrtc: {why}");
            eprintln!("SKIPPED {test}: {why}; tests/fetch-cuda-compilers installs it");
            None
        }
    }
}

/// A card as the texts need it.
fn card(chip: u32) -> DeviceInfo {
    let mut features = vec![Feature::Fp64, Feature::Int64, Feature::SmallInt, Feature::Subgroups];
    if chip >= 80 {
        features.push(Feature::TensorBf16);
    }
    DeviceInfo {
        id: "cuda:0".into(),
        uid: "GPU-made-up".into(),
        name: "made-up card".into(),
        vendor: "NVIDIA".into(),
        backend: Backend::Cuda,
        class: DeviceClass::Discrete,
        driver: "0".into(),
        api: format!("CUDA 12.8, sm_{chip}"),
        langs: vec![Lang::Cuda],
        memory_bytes: Some(8 << 30),
        max_alloc_bytes: 8 << 30,
        max_binding_bytes: 8 << 30,
        max_group: 1024,
        max_groups: [i32::MAX as u64, 65_535, 65_535],
        local_bytes: 48 * 1024,
        compute_units: 80,
        compute_capability: Some((chip / 10, chip % 10)),
        dtypes: DType::ALL.to_vec(),
        features,
        libraries: vec![(Library::Cublas, "made-up".into())],
        unified_memory: false,
        cache_bytes: None,
        theoretical: None,
        facts: Default::default(),
        notes: vec![],
    }
}

/// One program that some case of some op needs.
struct Needed {
    label: String,
    variant: &'static str,
    text: Text,
    step: Step,
}

/// Runs `f` on every item, on as many threads as there are processors.
fn in_parallel<T: Sync>(items: &[T], f: impl Fn(&T) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    f(item);
                }
            });
        }
    });
}

/// Every distinct program that any case of the full tier needs on the card, through any variant.
fn needed(chip: u32) -> Vec<Needed> {
    let info = card(chip);
    let mut all = BTreeMap::new();
    for op in op::all() {
        for dtype in op.dtypes {
            for spec in op.specs(Tier::Full, *dtype) {
                // A case with alpha = 0.5 is none for integers.
                let Ok(case) = op.case(*dtype, &spec.dims, spec.attrs, spec.fill) else { continue };
                for kernel in op.kernels.iter().filter(|k| matches!(k.body, Body::C(_) | Body::Cuda(_))) {
                    let Ok(choice) = kernel::choose(op.kernels, &case, &info, Some(kernel.variant)) else { continue };
                    for step in &choice.plan.steps {
                        let text = source::assemble(choice.kernel, step, choice.lang).unwrap();
                        let label = format!("{} {dtype} {} {}", op.name, kernel.variant, step.entry);
                        all.entry((text.hash(), text.entry.clone())).or_insert_with(|| Needed {
                            label,
                            variant: kernel.variant,
                            text,
                            step: step.clone(),
                        });
                    }
                }
            }
        }
    }
    all.into_values().collect()
}

/// Bits of the entry's parameters as the PTX declares them: `.param .u64 gemm_param_3,`.
fn parameters(ptx: &str, entry: &str) -> Option<Vec<u32>> {
    let list = ptx.split(&format!(".entry {entry}(")).nth(1)?.split(')').next()?;
    let bits = |line: &str| {
        let kind = line.split_whitespace().find(|w| w.starts_with('.') && w.ends_with(|c: char| c.is_ascii_digit()))?;
        kind.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()
    };
    list.split(',').filter(|l| l.contains(".param")).map(bits).collect()
}

fn wanted(step: &Step) -> Vec<u32> {
    let scalar = |p: &Param| match p {
        Param::U64(_) | Param::F64(_) | Param::I64(_) | Param::Wide(_) => 64,
        Param::F32(_) | Param::I32(_) | Param::U32(_) => 32,
    };
    step.args.iter().map(|_| 64).chain(step.params.iter().map(scalar)).collect()
}

fn ptx(nvrtc: &Nvrtc, text: &Text, chip: u32) -> String {
    let image = nvrtc.compile(&text.text, &text.entry, Target::Ptx(chip)).unwrap();
    String::from_utf8(image.bytes).unwrap().trim_end_matches('\0').to_string()
}

#[test]
fn every_text_compiles_for_three_chips_with_the_parameters_of_its_plan() {
    let Some(nvrtc) = nvrtc("every_text_compiles_for_three_chips_with_the_parameters_of_its_plan") else { return };
    for chip in CHIPS {
        let mut all = needed(chip);
        let ops: std::collections::BTreeSet<_> = all.iter().map(|n| n.label.split(' ').next().unwrap()).collect();
        for op in ["add", "relu", "exp", "tanh", "sum", "softmax", "gemm", "transpose", "launch"] {
            assert!(ops.contains(op), "sm_{chip}: nothing to compile for {op}");
        }
        let mma = all.iter().filter(|n| n.variant == "mma").count();
        assert_eq!(mma, usize::from(chip >= 80), "sm_{chip}: tensor-core texts");
        // Every text for the newest chip and for one of the two older ones; with `GPUCTL_TEST_ALL` for all three.
        let every = std::env::var_os("GPUCTL_TEST_ALL").is_some();
        all.retain(|n| every || chip == CHIPS[2] || n.text.hash() % 2 == u64::from(chip == CHIPS[1]));
        in_parallel(&all, |n| {
            let image = nvrtc
                .compile(&n.text.text, &n.text.entry, Target::Cubin(chip))
                .unwrap_or_else(|e| panic!("sm_{chip}, {}: {e}", n.label));
            assert!(whole_cubin(&image.bytes), "sm_{chip}, {}: not a whole cubin", n.label);
            // The driver is given no length: a file that was cut must not reach it.
            for cut in (0..100).map(|i| image.bytes.len() * i / 100) {
                assert!(!whole_cubin(&image.bytes[..cut]), "sm_{chip}, {}: cut at {cut}", n.label);
            }
        });
    }
    let (step, text) = kernel::stray::stray(Lang::Cuda).unwrap().unwrap();
    assert_eq!(parameters(&ptx(&nvrtc, &text, 80), step.entry), Some(wanted(&step)), "the kernel that goes astray");
    // The parameters are the same for every chip, and for every text with the same entry and scalars.
    let mut seen = std::collections::BTreeSet::new();
    let mut few = needed(80);
    few.retain(|n| seen.insert((n.text.entry.clone(), wanted(&n.step))));
    assert!(few.len() > 40, "{} kinds of launches", few.len());
    in_parallel(&few, |n| {
        let text = ptx(&nvrtc, &n.text, 80);
        assert_eq!(parameters(&text, n.step.entry), Some(wanted(&n.step)), "{}", n.label);
    });
}

/// Ops whose speed decides: products in every dtype and variant, the others in the dtypes of networks.
const HOT: &[&str] =
    &["gemv", "conv2d", "conv2d_bwd_data", "conv2d_bwd_weight", "softmax", "layernorm", "sum", "exp", "add"];

fn is_hot(n: &Needed) -> bool {
    let op = n.label.split(' ').next().unwrap();
    op == "gemm" || HOT.contains(&op) && matches!(n.step.dtype, DType::F32 | DType::BF16)
}

/// The number before these words in what ptxas says.
fn number(log: &str, words: &str) -> Option<u64> {
    let before = &log[..log.find(words)?];
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[test]
fn hot_kernels_do_not_spill_and_products_use_tensor_cores() {
    let test = "hot_kernels_do_not_spill_and_products_use_tensor_cores";
    let Some(nvrtc) = nvrtc(test) else { return };
    let ptxas = compilers().join("nvidia/cuda_nvcc/bin/ptxas");
    if !ptxas.exists() {
        assert!(!required(), "GPUCTL_REQUIRE lists nvrtc: {} is missing", ptxas.display());
        eprintln!("SKIPPED {test}: no ptxas; tests/fetch-cuda-compilers installs it");
        return;
    }
    for chip in CHIPS {
        let hot: Vec<_> = needed(chip).into_iter().filter(is_hot).collect();
        let ops: std::collections::BTreeSet<_> = hot.iter().map(|n| n.label.split(' ').next().unwrap()).collect();
        assert_eq!(ops.len(), HOT.len() + 1, "sm_{chip}: {ops:?}");
        assert!(hot.iter().filter(|n| n.label.starts_with("gemm ")).count() >= 3 * 5, "sm_{chip}: products");
        let registers = std::sync::Mutex::new(Vec::new());
        in_parallel(&hot, |n| {
            let text = ptx(&nvrtc, &n.text, chip);
            assert_eq!(text.contains("mma.sync.aligned.m16n8k16"), n.variant == "mma", "sm_{chip}, {}", n.label);
            let folder = tempfile::tempdir().unwrap();
            let (file, cubin) = (folder.path().join("hot.ptx"), folder.path().join("hot.cubin"));
            std::fs::write(&file, text).unwrap();
            let arch = format!("-arch=sm_{chip}");
            let out = Command::new(&ptxas).args([&arch, "-v"]).arg(&file).arg("-o").arg(&cubin).output().unwrap();
            let log = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.success(), "sm_{chip}, {}: {log}", n.label);
            for words in [" bytes spill stores", " bytes spill loads", " bytes stack frame"] {
                assert_eq!(number(&log, words), Some(0), "sm_{chip}, {}: {log}", n.label);
            }
            let used = number(&log, " registers").unwrap_or_else(|| panic!("no registers in {log}"));
            registers.lock().unwrap().push((used, n.label.clone()));
        });
        let registers = registers.into_inner().unwrap();
        let (most, label) = registers.iter().max().unwrap();
        // Not by eprintln, which a passing test keeps to itself.
        let _ = writeln!(
            std::io::stderr(),
            "sm_{chip}: {} hot kernels, 0 bytes spilled, no stack; at most {most} registers ({label})",
            registers.len()
        );
    }
}

#[test]
fn a_text_with_an_error_fails_with_the_compilers_words() {
    let Some(nvrtc) = nvrtc("a_text_with_an_error_fails_with_the_compilers_words") else { return };
    let e = nvrtc.compile("extern \"C\" __global__ void f() { undeclared = 1; }", "f", Target::Cubin(80)).unwrap_err();
    assert_eq!(e.code(), Code::CompileFailed);
    let log = e.context().log.clone().unwrap_or_default();
    assert!(log.contains("f.cu(1)") && log.contains("undeclared"), "{e}: {log}");
    assert!(e.to_string().contains("undeclared"), "{e}");
    let e = nvrtc.compile("void f() {}", "f", Target::Cubin(1)).unwrap_err();
    assert!(e.detail().contains("--gpu-architecture"), "{e}");
    assert_eq!(e.context().status.as_ref().map(|s| s.name.as_str()), Some("NVRTC_ERROR_INVALID_OPTION"), "{e}");
    assert_eq!(nvrtc.compile("a\0b", "f", Target::Cubin(80)).unwrap_err().code(), Code::CompileFailed);
    assert!(nvrtc.archs.contains(&80), "{nvrtc:?} names its chips: {:?}", nvrtc.archs);
}

/// Names that a prelude defines; those that begin with `prelude_` are its own.
fn defined(prelude: &str) -> Vec<String> {
    let word = |s: &str| s.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>();
    let mut names: Vec<String> = prelude
        .lines()
        .filter_map(|line| {
            let line = line.trim();
            if let Some(rest) = line.strip_prefix("#define ") {
                return Some(word(rest));
            }
            let alias = line.strip_prefix("typedef ")?.trim_end_matches(';');
            alias.split_whitespace().last().map(word)
        })
        .filter(|n| !n.starts_with("prelude_"))
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn both_preludes_define_the_same_names() {
    let (cu, cl) = (defined(PRELUDE_CU), defined(PRELUDE_CL));
    assert_eq!(cu, cl);
    for name in ["KERNEL_WG", "GLOBAL", "SHARED", "BARRIER", "FLAT_GRP", "BF16_STORE", "u64", "f64", "IS_NAN"] {
        assert!(cu.iter().any(|n| n == name), "{name} is not defined: {cu:?}");
    }
    // The comparison does notice a name that only one side has.
    assert_ne!(defined(&format!("{PRELUDE_CU}\n#define EXTRA 1")), cl);
}

#[test]
fn no_text_asks_for_fast_math_or_headers() {
    for n in needed(80) {
        for word in ["#include", "__expf", "fast_math", "native_", "__fdividef"] {
            assert!(!n.text.text.contains(word), "{}: {word}", n.label);
        }
    }
}

#[test]
fn libraries_are_searched_where_they_are_installed() {
    let root = tempfile::tempdir().unwrap();
    let make = |path: &str| {
        let p = root.path().join(path);
        std::fs::create_dir_all(&p).unwrap();
        p
    };
    let old = make("usr/local/cuda-11.8/lib64");
    let new = make("usr/local/cuda-12.9/lib64");
    let sbsa = make("usr/local/cuda-12.9/targets/sbsa-linux/lib");
    let named = make("opt/mine/lib64");
    let venv = make("venv/lib/python3.12/site-packages/nvidia/cu13/lib");
    let wheel = make("venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib");
    let user = make("home/u/.local/lib/python3.11/site-packages/nvidia/cublas/lib");
    let debian = make("usr/lib/python3/dist-packages/nvidia/cublas/lib");
    let started = make("py/lib/python3.10/site-packages/nvidia/cublas/lib");
    make("py/bin");
    std::fs::write(root.path().join("py/bin/python3"), "").unwrap();
    let at = |p: &str| Some(root.path().join(p).display().to_string());
    let look = |name: &str| match name {
        "CUDA_PATH" => at("opt/mine"),
        "VIRTUAL_ENV" => at("venv"),
        "HOME" => at("home/u"),
        "PATH" => at("py/bin"),
        "CONDA_PREFIX" => Some(String::new()),
        _ => None,
    };
    let found = libraries::folders(&look, root.path());
    let place = |p: &PathBuf| found.iter().position(|f| f == p).unwrap_or_else(|| panic!("{p:?} not in {found:?}"));
    assert_eq!(place(&named), 0, "what the user names comes first");
    assert!(place(&new) < place(&old), "newer toolkits first");
    assert!(place(&sbsa) < place(&venv), "toolkits before wheels");
    for p in [&wheel, &user, &debian, &started] {
        place(p);
    }
    assert!(found.iter().all(|f| f.is_dir()));

    // A file that is no library is named in the reason, and nothing is taken for found.
    std::fs::write(named.join("libnvrtc.so.12"), "not a library").unwrap();
    let why = Nvrtc::find(12, &[named]).map(|n| n.path);
    match why {
        Err(why) => {
            assert!(why.contains("libnvrtc.so.12") && why.contains("libnvrtc.so.11.2"), "{why}");
            assert!(!why.contains("libnvrtc.so.13"), "newer than the driver: {why}");
            assert!(why.contains("opt/mine/lib64/libnvrtc.so.12: "), "{why}");
        }
        // This machine has one in the loader's own path, which comes first.
        Ok(path) => assert!(!path.contains("opt/mine"), "{path}"),
    }
}

#[test]
fn a_compiler_newer_than_the_driver_is_passed_over() {
    let Some(found) = nvrtc("a_compiler_newer_than_the_driver_is_passed_over") else { return };
    let mut folders = libraries::wheels(&compilers());
    folders.push(Path::new(&found.path).parent().unwrap().to_path_buf());
    if let Ok(older) = Nvrtc::find(found.version.0 - 1, &folders) {
        assert!(older.version.0 < found.version.0, "{older:?}");
    }
    let same = Nvrtc::find(found.version.0, &folders).unwrap();
    assert_eq!(same.version.0, found.version.0);
}

/// Whatever this machine has: devices, or a reason and a next step; never a panic, never nothing.
#[test]
fn the_probe_gives_devices_or_a_reason() {
    let probe = gpuctl::device::cuda::probe();
    assert!(!probe.found.is_empty() || !probe.absent.is_empty());
    for a in &probe.absent {
        assert_eq!(a.backend, Backend::Cuda);
        assert!(a.reason.len() > 10 && a.next.len() > 10, "{a:?}");
        if a.reason.contains("was not found") {
            assert!(a.reason.contains("libcuda.so") && a.reason.contains("libcuda.so.1"), "{a:?}");
        }
    }
    if probe.found.is_empty() {
        eprintln!("no CUDA device here: {}", probe.absent[0].reason);
    }
}
