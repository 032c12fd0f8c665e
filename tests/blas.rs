//! `--cpu-blas`: libraries opened by the binary. One that a C compiler makes here is always there; real ones are tried where they
//! are found, and named as skipped where they are not.

#![allow(clippy::print_stderr, reason = "skips are named")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A CBLAS in textbook loops. LONG: integers of 64 bits; FAULT: a planted mistake; WITHOUT_NRM2: a routine that is missing.
const LIBRARY: &str = r#"
#include <math.h>
#ifdef LONG
typedef long long I;
#else
typedef int I;
#endif
#define GLUE_(a, b) a##b
#define GLUE(a, b) GLUE_(a, b)
#ifndef SUFFIX
#define SUFFIX
#endif
#define NAME(n) GLUE(n, SUFFIX)
#define GEMM(name, T) \
void NAME(name)(int order, int ta, int tb, I m, I n, I k, T alpha, const T *a, I lda, const T *b, I ldb, T beta, T *c, I ldc) { \
    for (I i = 0; i < m; ++i) for (I j = 0; j < n; ++j) { \
        T s = 0; \
        for (I q = 0; q < k; ++q) \
            s += (ta == 112 && FAULT != 1 ? a[q * lda + i] : a[i * lda + q]) * (tb == 112 ? b[j * ldb + q] : b[q * ldb + j]); \
        c[i * ldc + j] = alpha * s + (beta == 0 && FAULT != 2 ? 0 : beta * c[i * ldc + j]); \
    } \
}
#define GEMV(name, T) \
void NAME(name)(int order, int t, I rows, I columns, T alpha, const T *a, I lda, const T *x, I ix, T beta, T *y, I iy) { \
    I m = t == 112 ? columns : rows, n = t == 112 ? rows : columns; \
    for (I i = 0; i < m; ++i) { \
        T s = 0; \
        for (I j = 0; j < n; ++j) s += (t == 112 ? a[j * lda + i] : a[i * lda + j]) * x[j * ix]; \
        y[i * iy] = alpha * s + (beta == 0 ? 0 : beta * y[i * iy]); \
    } \
}
#define DOT(name, T) T NAME(name)(I n, const T *x, I ix, const T *y, I iy) { \
    T s = 0; for (I i = 0; i < n; ++i) s += x[i * ix] * y[i * iy]; return s; }
#define NRM2(name, T) T NAME(name)(I n, const T *x, I ix) { \
    double top = 0, s = 0; \
    for (I i = 0; i < n; ++i) { if (isnan(x[i * ix])) return x[i * ix]; if (fabs(x[i * ix]) > top) top = fabs(x[i * ix]); } \
    if (top == 0 || isinf(top)) return top; \
    int e; frexp(top, &e); \
    for (I i = 0; i < n; ++i) { double v = ldexp(x[i * ix], -e); s += v * v; } \
    return ldexp(sqrt(s), e); }
#define AXPY(name, T) void NAME(name)(I n, T alpha, const T *x, I ix, T *y, I iy) { \
    for (I i = 0; i < n; ++i) y[i * iy] += alpha * x[i * ix]; }
GEMM(cblas_sgemm, float) GEMM(cblas_dgemm, double)
GEMV(cblas_sgemv, float) GEMV(cblas_dgemv, double)
DOT(cblas_sdot, float) DOT(cblas_ddot, double)
#ifndef WITHOUT_NRM2
NRM2(cblas_snrm2, float) NRM2(cblas_dnrm2, double)
#endif
AXPY(cblas_saxpy, float) AXPY(cblas_daxpy, double)
static int threads = 64;
void NAME(openblas_set_num_threads)(int n) { threads = n; }
int NAME(openblas_get_num_threads)(void) { return SERIAL ? 1 : threads; }
int NAME(openblas_get_parallel)(void) { return SERIAL ? 0 : 1; }
char *NAME(openblas_get_config)(void) { return "OpenBLAS 0.0.7 made for a test " CORE; }
char *NAME(openblas_get_corename)(void) { return CORE; }
"#;

/// Says why a test cannot run. With anything in `GPUCTL_REQUIRE` a C compiler must be there.
fn skipped(test: &str, why: &str) {
    let require = std::env::var("GPUCTL_REQUIRE").unwrap_or_default();
    assert!(require.is_empty(), "GPUCTL_REQUIRE is '{require}', but: {why}");
    eprintln!("skipped: {test}: {why}");
}

/// Compiles the library into a folder, with these definitions beside the usual ones; `None` without a compiler.
fn library(folder: &Path, name: &str, defines: &[&str]) -> Option<PathBuf> {
    let (source, out) = (folder.join("blas.c"), folder.join(name));
    std::fs::write(&source, LIBRARY).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-ffp-contract=off", "-o"]).arg(&out).arg(&source);
    for (usual, value) in [("CORE", "\"Prescott\""), ("FAULT", "0"), ("SERIAL", "0")] {
        if !defines.iter().any(|d| d.starts_with(usual)) {
            cc.arg(format!("-D{usual}={value}"));
        }
    }
    cc.args(defines.iter().map(|d| format!("-D{d}"))).arg("-lm");
    match cc.output() {
        Ok(done) => {
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            Some(out)
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => panic!("cc: {e}"),
    }
}

fn gpuctl(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    command.args(args).current_dir(folder);
    for (name, below) in [("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config"), ("XDG_CACHE_HOME", "cache")] {
        command.env(name, folder.join(below));
    }
    for name in ["GPUCTL_REQUIRE", "GPUCTL_CACHE", "GPUCTL_CPU_ISA", "GPUCTL_PROFILE", "GPUCTL_RECORD"] {
        command.env_remove(name);
    }
    command.env("GPUCTL_DISABLE_GPU", "1").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn document(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out.stderr)))
}

fn records<'a>(doc: &'a Value, kind: &str) -> Vec<&'a Value> {
    doc["records"].as_array().unwrap().iter().filter(|r| r["kind"] == kind).collect()
}

const OPS: &str = "gemm,bmm,gemv,dot,nrm2,axpy";

/// Verifies all ops that a library takes part in; gives how many rows the library computed.
fn verified(folder: &Path, path: &str) -> usize {
    let out = gpuctl(folder, &["verify", "--device", "cpu", "--cpu-blas", path, "--op", OPS, "--json", "-"]);
    let doc = document(&out);
    let rows = records(&doc, "verify");
    let bad: Vec<String> = rows.iter().filter(|r| r["status"] == "failed").map(ToString::to_string).collect();
    assert_eq!(out.status.code(), Some(0), "{}\n{}", text(&out.stderr), bad.join("\n"));
    let ran: Vec<&&Value> = rows.iter().filter(|r| r["variant"] == "blas").collect();
    for row in &ran {
        assert_eq!(row["status"], "ok", "{row}");
        let flags = row["flags"].to_string();
        assert!(flags.contains("blas: "), "the library is named: {row}");
        assert!(["f32", "f64"].contains(&row["dtype"].as_str().unwrap()), "{row}");
    }
    for op in OPS.split(',') {
        assert!(ran.iter().any(|r| r["op"] == op), "{op} never ran on the library");
    }
    // What a library is not asked runs on our kernels, and the row says why.
    let own = rows.iter().find(|r| r["op"] == "gemm" && r["shape_text"] == "m3,n4,k0" && r["dtype"] == "f32").unwrap();
    assert!(own["variant"] == "blocked" && own["flags"] == serde_json::json!([]), "{own}");
    ran.len()
}

#[test]
fn a_library_is_used_judged_and_named_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = library(dir.path(), "libtiny.so", &[]) else {
        return skipped("a_library_is_used_judged_and_named_everywhere", "no C compiler 'cc'");
    };
    let path = path.to_str().unwrap();
    let ran = verified(dir.path(), path);
    assert!(ran > 60, "{ran}");

    let out = gpuctl(dir.path(), &["devices", "--backend", "cpu", "--cpu-blas", path]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("products run on OpenBLAS 0.0.7, Prescott"), "{said}");
    let weak = said.contains("weak BLAS: OpenBLAS 0.0.7, Prescott: its core type Prescott stands for SSE at most");
    assert_eq!(weak, gpuctl::kernel::Isa::detect().name() != "baseline", "{said}");

    let args = ["bench", "--op", "gemm", "--sizes", "64", "--device", "cpu", "--threads", "2", "--budget", "0.2s"];
    let out = gpuctl(dir.path(), &[&args[..], &["--processes", "2", "--cpu-blas", path, "--json", "-"]].concat());
    let doc = document(&out);
    let row = records(&doc, "bench")[0];
    assert_eq!((&row["variant"], &row["status"]), (&"blas".into(), &"ok".into()), "{row}");
    let baseline = row["baseline"].as_str().or(row["analysis"]["baseline"].as_str()).unwrap();
    assert!(baseline.starts_with("blas (OpenBLAS 0.0.7, Prescott, 2 threads), 2 threads, "), "{baseline}");
    assert_eq!(row["flags"].to_string().contains("weak-baseline: weak BLAS: OpenBLAS 0.0.7, Prescott"), weak, "{row}");
    let cpu = &doc["devices"][0];
    assert_eq!(cpu["libraries"][0], serde_json::json!(["blas", "OpenBLAS 0.0.7, Prescott, 2 threads"]), "{cpu}");
    assert_eq!((&cpu["facts"]["blas"]["core"], &cpu["facts"]["blas"]["int_bits"]), (&"Prescott".into(), &32.into()));

    // Ours again, without a word of the library.
    let out = gpuctl(dir.path(), &[&args[..], &["--processes", "1", "--cpu-blas", "own", "--json", "-"]].concat());
    let doc = document(&out);
    assert_eq!(records(&doc, "bench")[0]["variant"], "blocked");
    assert!(!text(&out.stdout).contains("Prescott") && doc["devices"][0]["facts"]["blas"].is_null());
}

/// Thresholds against one CPU side say nothing about another.
#[test]
fn a_profile_belongs_to_its_library() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = library(dir.path(), "libtiny.so", &[]) else {
        return skipped("a_profile_belongs_to_its_library", "no C compiler 'cc'");
    };
    let path = path.to_str().unwrap();
    let made = |name: &str, more: &[&str]| {
        let args = ["calibrate", "--op", "gemm", "--device", "cpu", "--budget", "0.1s", "-o", name];
        gpuctl(dir.path(), &[&args[..], more].concat())
    };
    let out = made("with.toml", &["--cpu-blas", path]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    if gpuctl::kernel::Isa::detect().name() != "baseline" {
        assert!(text(&out.stderr).contains("weak BLAS: OpenBLAS 0.0.7, Prescott"), "{}", text(&out.stderr));
    }
    assert_eq!(made("own.toml", &[]).status.code(), Some(0));
    let file = std::fs::read_to_string(dir.path().join("with.toml")).unwrap();
    assert!(file.contains("blas = \"OpenBLAS 0.0.7, Prescott\""), "{file}");
    assert!(!std::fs::read_to_string(dir.path().join("own.toml")).unwrap().contains("blas ="));
    let shown = text(&gpuctl(dir.path(), &["profile", "show", "with.toml"]).stdout);
    assert!(shown.contains(" with OpenBLAS 0.0.7, Prescott"), "{shown}");
    for (earlier, more) in [("with.toml", &[][..]), ("own.toml", &["--cpu-blas", path][..])] {
        let out = made("both.toml", &[&["--merge", earlier], more].concat());
        assert_eq!(out.status.code(), Some(2), "{earlier} {}", text(&out.stderr));
        assert!(text(&out.stderr).contains("profile-stale"), "{}", text(&out.stderr));
    }
    assert_eq!(made("both.toml", &["--merge", "with.toml", "--cpu-blas", path]).status.code(), Some(0));
    let out = gpuctl(dir.path(), &["profile", "merge", "with.toml", "own.toml"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
}

#[test]
fn integers_are_found_out_whatever_names_promise() {
    let dir = tempfile::tempdir().unwrap();
    for (name, defines, bits, shown) in [
        ("liblong.so", &["LONG"][..], 64, "SkylakeX"),
        ("libsuffixed.so", &["LONG", "SUFFIX=64_"][..], 64, "SkylakeX"),
        ("liblying.so", &["SUFFIX=64_"][..], 32, "SkylakeX"),
    ] {
        let defines = [defines, &["CORE=\"SkylakeX\"", "SERIAL=1"]].concat();
        let Some(path) = library(dir.path(), name, &defines) else {
            return skipped("integers_are_found_out_whatever_names_promise", "no C compiler 'cc'");
        };
        let out =
            gpuctl(dir.path(), &["devices", "--backend", "cpu", "--cpu-blas", path.to_str().unwrap(), "--json", "-"]);
        assert_eq!(out.status.code(), Some(0), "{name}: {}", text(&out.stderr));
        let blas = &document(&out)["devices"][0]["facts"]["blas"];
        assert_eq!((&blas["int_bits"], &blas["core"]), (&bits.into(), &shown.into()), "{name}");
        assert_eq!(blas["threads"], 1, "{name}");
        verified(dir.path(), path.to_str().unwrap());
    }
}

#[test]
fn what_cannot_be_used_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str, defines: &[&str]| library(dir.path(), name, defines);
    let Some(wrong) = made("libwrong.so", &["FAULT=1"]) else {
        return skipped("what_cannot_be_used_is_refused_in_one_line", "no C compiler 'cc'");
    };
    let reads = made("libreads.so", &["FAULT=2"]).unwrap();
    let less = made("libless.so", &["WITHOUT_NRM2"]).unwrap();
    std::fs::write(dir.path().join("libtext.so"), "no library").unwrap();
    for (asked, code, words) in [
        (wrong.to_str().unwrap(), 1, &["result-wrong", "cblas_sgemm", "transA=1", "is right"][..]),
        (reads.to_str().unwrap(), 1, &["result-wrong", "beta=0", "NaN"][..]),
        (less.to_str().unwrap(), 2, &["it has no cblas_snrm2"][..]),
        ("libtext.so", 2, &["library-not-found", "libtext.so"][..]),
        ("/nowhere/libblas.so", 2, &["library-not-found", "/nowhere/libblas.so"][..]),
        ("libm.so.6", 2, &["no BLAS with C's interface"][..]),
        ("", 2, &["--cpu-blas is empty"][..]),
    ] {
        let out = gpuctl(dir.path(), &["verify", "--device", "cpu", "--op", "gemm", "--cpu-blas", asked]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{asked}: {said}");
        assert_eq!(said.lines().count(), 1, "{asked}: {said}");
        assert!(words.iter().all(|w| said.contains(w)), "{asked}: {said}");
        assert!(out.stdout.is_empty(), "nothing is computed by anything else instead");
    }
    let simulated = gpuctl(dir.path(), &["bench", "--device", "sim:laptop", "--cpu-blas", wrong.to_str().unwrap()]);
    assert_eq!(simulated.status.code(), Some(2), "{}", text(&simulated.stderr));
    let soak = gpuctl(dir.path(), &["stress", "--seconds", "1", "--cpu-blas", "auto"]);
    assert_eq!(soak.status.code(), Some(2), "{}", text(&soak.stderr));
    // What uses no CPU takes no library.
    let health = gpuctl(dir.path(), &["devices", "--health", "--cpu-blas", wrong.to_str().unwrap()]);
    assert_eq!(health.status.code(), Some(2));
    assert!(text(&health.stderr).contains("cannot be used with"), "{}", text(&health.stderr));
}

/// `auto` either finds an installed library and names it, or says where it looked.
#[test]
fn auto_finds_what_is_installed_or_says_where_it_looked() {
    let dir = tempfile::tempdir().unwrap();
    let out = gpuctl(dir.path(), &["devices", "--backend", "cpu", "--cpu-blas", "auto"]);
    if out.status.success() {
        assert!(text(&out.stdout).contains("cpu: products run on "), "{}", text(&out.stdout));
        let found = verified(dir.path(), "auto");
        assert!(found > 60, "{found}");
    } else {
        eprintln!("skipped: the installed BLAS: there is none");
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains("library-not-found") && said.contains("openblas"), "{said}");
    }
}

/// Real libraries, where `tests/fetch-numpy` or `benches/compare` put them.
#[test]
fn real_libraries_pass_the_oracle() {
    let dir = tempfile::tempdir().unwrap();
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let mut found = 0;
    for folder in ["numpy/numpy.libs", "numpy/scipy.libs", "rivals/lib"] {
        let entries = std::fs::read_dir(target.join(folder)).into_iter().flatten().flatten();
        for path in entries.map(|e| e.path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if !name.starts_with("libscipy_openblas") && !name.starts_with("libmkl_rt") {
                continue;
            }
            let ran = verified(dir.path(), path.to_str().unwrap());
            assert!(ran > 60, "{name}: {ran}");
            eprintln!("{name}: {ran} cases");
            found += 1;
        }
    }
    if found == 0 {
        eprintln!("skipped: NumPy's OpenBLAS, SciPy's and MKL: none lies below target");
    }
}
