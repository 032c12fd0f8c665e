//! The rules of the source tree that neither the compiler nor clippy checks: layers, sizes, who may print, read files,
//! read the environment or write `unsafe`. Every rule is shown to catch a planted fault.

mod kernels;
mod layers;
mod scan;
mod text;
mod tree;

use scan::Source;
use tree::Fault;

/// Fails with one line per fault.
fn assert_clean(faults: &[Fault]) {
    let lines: Vec<String> = faults.iter().map(Fault::to_string).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), lines.join("\n"));
}

/// All Rust files of the library and the binary, parsed.
fn sources() -> Vec<Source> {
    let sources: Vec<Source> = tree::files()
        .iter()
        .filter(|f| f.path.starts_with("src/") && f.path.ends_with(".rs"))
        .map(|f| Source::parse(&f.path, &f.text))
        .collect();
    assert!(sources.len() > 30, "only {} files found: the walk is broken", sources.len());
    sources
}

fn check_sources(rule: fn(&Source) -> Vec<Fault>) {
    let faults: Vec<Fault> = sources().iter().flat_map(rule).collect();
    assert_clean(&faults);
}

fn check_texts(rule: fn(&tree::File) -> Vec<Fault>) {
    let faults: Vec<Fault> = tree::files().iter().flat_map(rule).collect();
    assert_clean(&faults);
}

/// Faults that a rule finds in a text that pretends to lie at `path`.
fn planted(rule: fn(&Source) -> Vec<Fault>, path: &str, text: &str) -> Vec<String> {
    rule(&Source::parse(path, text)).iter().map(Fault::to_string).collect()
}

fn planted_text(rule: fn(&tree::File) -> Vec<Fault>, path: &str, text: &str) -> Vec<String> {
    rule(&tree::File { path: path.into(), text: text.into() }).iter().map(Fault::to_string).collect()
}

#[test]
fn imports_never_point_up() {
    check_sources(layers::faults);
}

/// Each line of the fixture that ends in `// FAULT` must be found, and no other.
#[test]
fn planted_upward_imports_are_found() {
    let text = include_str!("../fixtures/tidy/upward.rs.txt");
    let expected: Vec<usize> =
        text.lines().enumerate().filter(|(_, l)| l.ends_with("// FAULT")).map(|(i, _)| i + 1).collect();
    let faults = layers::faults(&Source::parse("src/device/planted.rs", text));
    let mut found: Vec<usize> = faults.iter().map(|f| f.line).collect();
    found.dedup();
    assert!(expected.len() > 10);
    assert_eq!(found, expected, "{}", faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n"));
}

/// The table itself: what may be imported, layer by layer.
#[test]
fn the_layer_table_is_the_design() {
    for (layer, path, allowed) in [
        ("jobs", "op", true),
        ("jobs", "device", true),
        ("jobs", "base", true),
        ("jobs", "report", false),
        ("jobs", "cli", false),
        ("device", "kernel", true),
        ("device", "op", false),
        ("report", "base", true),
        ("report", "op", false),
        ("kernel", "op", false),
        ("profile", "base", true),
        ("profile", "device", false),
        ("op", "kernel", true),
        ("op", "device", false),
        ("measure", "device", true),
        ("measure", "jobs", false),
        ("engine", "measure", false),
        ("base", "kernel", false),
        ("cli", "report", true),
    ] {
        let text = format!("use crate::{path}::x;");
        let faults = planted(layers::faults, &format!("src/{layer}/a.rs"), &text);
        assert_eq!(faults.is_empty(), allowed, "{layer} -> {path}: {faults:?}");
    }
    // A module's root file and a folder's `mod.rs` count alike, and `super` of a layer's root is the crate.
    assert_eq!(planted(layers::faults, "src/device/mod.rs", "use super::op::find;").len(), 1);
    assert_eq!(planted(layers::faults, "src/device/cuda/driver.rs", "use super::libraries;").len(), 0);
    assert_eq!(planted(layers::faults, "src/widget/mod.rs", "").len(), 1, "an unknown layer");
}

#[test]
fn nothing_below_the_command_line_prints_or_exits() {
    check_sources(text::prints);
}

#[test]
fn planted_prints_are_found() {
    for (n, text) in [
        (1, "fn f() { println!(\"x\"); }"),
        (1, "fn f() { std::eprint!(\"x\"); }"),
        (1, "fn f() { dbg!(1); }"),
        (1, "fn f() { std::process::exit(1); }"),
        (1, "use std::process::{Command, exit};"),
        (1, "macro_rules! m { () => { print!(\"x\") } }"),
        (2, "fn f() { use std::io; io::stdout(); std::io::stderr(); }"),
        (0, "fn f(w: &mut dyn std::io::Write) { let _ = writeln!(w, \"x\"); }"),
        (0, "#[cfg(test)] mod tests { fn skip() { eprintln!(\"skipped: no driver\"); } }"),
    ] {
        let found = planted(text::prints, "src/report/csv.rs", text);
        assert_eq!(found.len(), n, "{text}: {found:?}");
    }
    let abort = "fn f() { std::process::abort(); }";
    assert_eq!(planted(text::prints, "src/engine/run.rs", abort).len(), 1);
    assert_eq!(planted(text::prints, "src/jobs/stress/worker.rs", abort).len(), 0);
    assert!(planted(text::prints, "src/cli/run.rs", "fn f() { println!(\"x\"); }").is_empty());
}

#[test]
fn unsafe_stays_where_the_design_allows_it_and_is_argued() {
    check_sources(text::unsafe_code);
}

#[test]
fn planted_unsafe_is_found() {
    let bare = "fn f() {\n    unsafe { g() }\n}";
    let argued = "fn f() {\n    // SAFETY: g has no precondition.\n    unsafe { g() }\n}";
    assert_eq!(planted(text::unsafe_code, "src/engine/run.rs", argued).len(), 1);
    assert_eq!(planted(text::unsafe_code, "src/base/os.rs", bare).len(), 1);
    assert_eq!(planted(text::unsafe_code, "src/base/os.rs", argued).len(), 0);
    assert_eq!(planted(text::unsafe_code, "src/device/cuda/driver.rs", argued).len(), 0);
    assert_eq!(planted(text::unsafe_code, "src/device/cudax.rs", argued).len(), 1);
    assert_eq!(planted(text::unsafe_code, "src/base/os.rs", "unsafe impl Send for X {}").len(), 1);
    let in_tests = "#[cfg(test)]\nmod tests {\n    unsafe fn f() {}\n}";
    assert_eq!(planted(text::unsafe_code, "src/base/os.rs", in_tests).len(), 0);
    assert_eq!(planted(text::unsafe_code, "src/base/os.rs", "unsafe fn f() {}").len(), 1);
    let in_macro = "macro_rules! m { () => { unsafe { g() } } }";
    assert_eq!(planted(text::unsafe_code, "src/jobs/bench.rs", in_macro).len(), 1);
}

#[test]
fn the_environment_is_read_in_one_file() {
    check_sources(text::environment);
}

#[test]
fn planted_reads_of_the_environment_are_found() {
    for (n, text) in [
        (1, "fn f() { std::env::var(\"X\").ok(); }"),
        (1, "use std::env; fn f() { env::var_os(\"X\"); }"),
        (1, "use std::env::{current_exe, vars};"),
        (0, "fn f() { std::env::current_exe().ok(); std::env::args(); }"),
    ] {
        assert_eq!(planted(text::environment, "src/device/opencl.rs", text).len(), n, "{text}");
    }
    assert!(planted(text::environment, "src/base/env.rs", "fn f() { std::env::var(\"X\").ok(); }").is_empty());
}

#[test]
fn files_are_touched_only_where_the_design_allows_it() {
    check_sources(text::files);
}

#[test]
fn planted_file_access_is_found() {
    for (n, text) in [
        (1, "fn f() { std::fs::read(\"x\").ok(); }"),
        (1, "use std::{fs, io};"),
        (1, "use std::fs::File;"),
        (0, "#[cfg(test)] mod tests { fn f() { std::fs::read(\"x\").ok(); } }"),
        (0, "use std::path::Path;"),
    ] {
        assert_eq!(planted(text::files, "src/jobs/verify.rs", text).len(), n, "{text}");
    }
    for path in ["src/cli/mod.rs", "src/profile/file.rs", "src/engine/cache.rs", "src/jobs/stress/journal.rs"] {
        assert!(planted(text::files, path, "use std::fs;").is_empty(), "{path}");
    }
}

#[test]
fn files_are_short_enough_to_have_one_reason_to_change() {
    check_texts(text::size);
}

#[test]
fn planted_long_file_is_found() {
    assert_eq!(planted_text(text::size, "src/op/long.rs", &"// a line\n".repeat(text::MAX_LINES + 1)).len(), 1);
    assert_eq!(planted_text(text::size, "src/op/fits.rs", &"// a line\n".repeat(text::MAX_LINES)).len(), 0);
}

#[test]
fn nothing_is_left_undone() {
    check_texts(text::undone);
}

#[test]
fn planted_stubs_are_found() {
    for word in text::UNDONE {
        let text = format!("fn f() {{ {word} }}\n");
        assert_eq!(planted_text(text::undone, "src/op/x.rs", &text).len(), 1, "{text}");
    }
    assert_eq!(planted_text(text::undone, "kernels/x.c", &format!("// {}\n", text::UNDONE[2])).len(), 1);
    assert_eq!(planted_text(text::undone, "src/op/x.rs", "fn f() {}\n").len(), 0);
}

#[test]
fn no_file_names_the_machine_that_built_it() {
    check_texts(text::machine);
}

#[test]
fn planted_machine_paths_are_found() {
    for word in text::MACHINE {
        assert_eq!(planted_text(text::machine, "README.md", &format!("see {word}x\n")).len(), 1, "{word}");
    }
    let foreign = "[[package]]\nsource = \"registry+https://example.org/index\"\n";
    assert_eq!(planted_text(text::machine, "Cargo.lock", foreign).len(), 1);
    let usual = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n";
    assert_eq!(planted_text(text::machine, "Cargo.lock", usual).len(), 0);
    assert_eq!(planted_text(text::machine, "docs/a.md", "https://docs.rs/wgpu and framework/x\n").len(), 0);
}

#[test]
fn both_preludes_define_the_same_names() {
    let (cl, cu) = (tree::read("kernels/prelude.cl"), tree::read("kernels/prelude.cu"));
    assert_clean(&kernels::prelude_difference(&cl, &cu));
}

#[test]
fn planted_prelude_difference_is_found() {
    let cl = "#define KERNEL __kernel\ntypedef uint u32;\n";
    let cu = "#define KERNEL extern \"C\" __global__\ntypedef unsigned int u32;\n";
    assert!(kernels::prelude_difference(cl, cu).is_empty());
    assert_eq!(kernels::prelude_difference(&format!("{cl}#define LID(d) get_local_id(d)\n"), cu).len(), 1);
    assert_eq!(kernels::prelude_difference(cl, &format!("{cu}typedef unsigned char u8;\n")).len(), 1);
    assert_eq!(
        kernels::prelude_difference(cl, &format!("{cu}static __device__ inline float half_to(u16 h) {{\n")).len(),
        1
    );
    // What the compiler of one side needs for itself begins with an underscore.
    assert!(kernels::prelude_difference(cl, &format!("{cu}#define _ONLY_CUDA 1\n")).is_empty());
    let helper = "__device__ __forceinline__ u64 prelude_axis(uint3 v, int d) { return v.x; }\n";
    assert!(kernels::prelude_difference(cl, &format!("{cu}{helper}")).is_empty());
    let named = "__device__ __forceinline__ u64 axis(uint3 v, int d) { return v.x; }\n";
    assert_eq!(kernels::prelude_difference(cl, &format!("{cu}{named}")).len(), 1);
}

#[test]
fn bodies_in_the_common_dialect_have_no_conditionals() {
    check_texts(kernels::conditionals);
}

#[test]
fn planted_conditionals_are_found() {
    assert_eq!(planted_text(kernels::conditionals, "kernels/a.c", "#ifdef __CUDACC__\n#endif\n").len(), 1);
    assert_eq!(planted_text(kernels::conditionals, "kernels/a.c", "  # if X\n").len(), 1);
    assert_eq!(planted_text(kernels::conditionals, "kernels/a.c", "x = prelude_axis(a, 0);\n").len(), 1);
    assert_eq!(planted_text(kernels::conditionals, "kernels/a.c", "__syncthreads();\n").len(), 1);
    assert_eq!(planted_text(kernels::conditionals, "kernels/a.c", "#define A 1\n").len(), 0);
    assert_eq!(planted_text(kernels::conditionals, "kernels/prelude.cl", "#ifdef X\n").len(), 0);
}

#[test]
fn every_substitution_in_wgsl_is_known() {
    let known = kernels::known_substitutions();
    let faults: Vec<Fault> = tree::files().iter().flat_map(|f| kernels::substitutions(f, &known)).collect();
    assert_clean(&faults);
}

#[test]
fn planted_unknown_substitution_is_found() {
    let known = vec!["EXPR".to_string(), "WG".to_string()];
    let file = |text: &str| tree::File { path: "kernels/a.wgsl".into(), text: text.into() };
    assert!(kernels::substitutions(&file("let y = {{EXPR}}; {{WG}}"), &known).is_empty());
    assert_eq!(kernels::substitutions(&file("let y = {{EXPER}};"), &known).len(), 1);
    assert_eq!(kernels::substitutions(&file("let y = {{EXPR};"), &known).len(), 1);
}
