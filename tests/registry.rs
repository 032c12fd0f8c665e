//! The op table against the list of names in `tests/ops.txt`, and its coverage of languages and dtypes.

#![allow(clippy::print_stdout, reason = "the matrix is for people")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use gpuctl::base::{Cost, DType, Fill, Lang};
use gpuctl::kernel::{Body, Kernel, Step, source};
use gpuctl::op::{self, CaseSpec, Gap, OpDesc, ShapeClass, Tier};

/// The forms a kernel comes in, as the matrix shows them.
const FORMS: [&str; 3] = ["native", "c", "wgsl"];

/// Ops that have no kernel in a form, and why. A row that is no longer true is an error.
const GAPS: &[(&str, &str, &str)] = &[];

/// Forms that a kernel serves. What the queue does itself is there on every device.
fn serves(kernel: &Kernel) -> &'static [&'static str] {
    match kernel.body {
        Body::Native(_) => &["native"],
        Body::C(_) | Body::Opencl(_) => &["c"],
        Body::Wgsl(_) => &["wgsl"],
        Body::Action(_) => &FORMS,
        // Specialities of one maker, never the only kernel of an op.
        Body::Cuda(_) | Body::Routine(_) => &[],
    }
}

/// Dtypes that an op's kernels of a form take without being named.
fn dtypes(op: &OpDesc, form: &str) -> Vec<DType> {
    let takes =
        |d: DType| op.kernels.iter().any(|k| !k.only_when_named && serves(k).contains(&form) && k.dtypes.contains(&d));
    op.dtypes.iter().copied().filter(|d| takes(*d)).collect()
}

/// Names of the list that the table lacks, and names of the table that the list lacks.
fn differences(list: &str, table: &[&str]) -> Vec<String> {
    let listed: BTreeSet<&str> = list.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
    let have: BTreeSet<&str> = table.iter().copied().collect();
    let missing = listed.difference(&have).map(|n| format!("{n}: in tests/ops.txt, not in the table"));
    let extra = have.difference(&listed).map(|n| format!("{n}: in the table, not in tests/ops.txt"));
    missing.chain(extra).collect()
}

#[test]
fn the_table_is_the_list() {
    let table: Vec<&str> = op::all().map(|o| o.name).collect();
    let found = differences(include_str!("ops.txt"), &table);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_cost_curve_sees_every_dimension() {
    for op in op::all() {
        assert!(op.dims.len() <= gpuctl::base::MOST_DIMS, "{}: {:?}", op.name, op.dims);
        let dims = (op.families[0].sweep)(64);
        let case = op.case(op.dtypes[0], &dims, Default::default(), Fill::Uniform).unwrap();
        let features = op.features(&case);
        assert_eq!(&features.dims[..dims.len()], &dims, "{}", op.name);
        assert_eq!((features.work, features.cost), ((op.work)(&case), (op.cost)(&case)), "{}", op.name);
    }
}

#[test]
fn a_missing_and_a_surplus_name_are_found() {
    assert!(differences("# comment\nadd\nexp\n", &["exp", "add"]).is_empty());
    assert_eq!(differences("add\nexp\n", &["add"]), ["exp: in tests/ops.txt, not in the table"]);
    assert_eq!(differences("add\n", &["add", "exp"]), ["exp: in the table, not in tests/ops.txt"]);
}

/// Missing forms and dtypes without a stated reason; reasons for gaps that do not exist.
fn gaps(op: &OpDesc, known: &[(&str, &str, &str)]) -> Vec<String> {
    let mut out = Vec::new();
    for form in FORMS {
        let reason = known.iter().find(|(o, f, _)| *o == op.name && *f == form).map(|(_, _, why)| *why);
        let here: Vec<&Kernel> = op.kernels.iter().filter(|k| serves(k).contains(&form)).collect();
        match (here.is_empty(), reason) {
            (true, None) => out.push(format!("{}: no {form} kernel and no reason", op.name)),
            (true, Some(why)) if why.len() < 10 => out.push(format!("{}: '{why}' is no reason", op.name)),
            (false, Some(_)) => out.push(format!("{}: the gap in {form} is stated but closed", op.name)),
            _ => {}
        }
        let have = dtypes(op, form);
        for d in op.dtypes.iter().filter(|d| !here.is_empty() && !have.contains(d)) {
            if !here.iter().any(|k| k.dtypes_why.len() >= 10) {
                out.push(format!("{}: no {form} kernel takes {d}, and no dtypes_why says why", op.name));
            }
        }
    }
    out
}

#[test]
fn every_op_is_there_in_every_form_or_says_why_not() {
    let found: Vec<String> = op::all().flat_map(|o| gaps(o, GAPS)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    for (name, form, _) in GAPS {
        assert!(op::find(name).is_ok() && FORMS.contains(form), "the gap {name}/{form} names nothing");
    }
}

#[test]
fn a_stale_gap_and_an_unknown_one_are_found() {
    let gemm = op::find("gemm").unwrap();
    assert_eq!(gaps(gemm, &[("gemm", "c", "the text is too long to write")]).len(), 1);
    assert_eq!(gaps(gemm, &[]).len(), 0);
}

/// `naive` is the baseline that everything is compared with; copies and allocations have no loops to be naive about.
#[test]
fn every_op_has_a_naive_kernel_on_the_cpu() {
    for op in op::all() {
        let acts = op.kernels.iter().all(|k| matches!(k.body, Body::Action(_)));
        let naive = op.kernels.iter().any(|k| k.variant == "naive" && matches!(k.body, Body::Native(_)));
        let overhead = op.unit == op::Unit::Calls;
        assert!(acts || naive || overhead, "{}: no naive kernel", op.name);
    }
}

#[test]
fn variants_are_unique_within_a_form() {
    for op in op::all() {
        let mut seen: BTreeMap<(String, &str), usize> = BTreeMap::new();
        for k in op.kernels {
            *seen.entry((format!("{:?}", k.body), k.variant)).or_default() += 1;
        }
        let twice: Vec<_> = seen.iter().filter(|(_, n)| **n > 1).collect();
        assert!(twice.is_empty(), "{}: {twice:?}", op.name);
    }
}

/// The matrix, for people: `cargo test --test registry -- --nocapture matrix`.
/// Whatever else a file of kernels holds would be compiled for nothing with every program.
#[test]
fn every_text_declares_one_entry() {
    let begins = |line: &&str| line.starts_with("KERNEL");
    let mut seen = 0;
    for op in op::all() {
        for kernel in op.kernels {
            let (Body::C(body) | Body::Opencl(body)) = kernel.body else { continue };
            let name = |line: &'static str| line.split(['(', ',', ')']).nth(1).unwrap().trim();
            for entry in body.lines().filter(begins).map(name) {
                let step = Step {
                    entry,
                    dtype: DType::F32,
                    defines: vec![],
                    group: [1; 3],
                    groups: [1; 3],
                    args: vec![],
                    writes: vec![],
                    params: vec![],
                    cost: Cost::default(),
                };
                let text = source::assemble(kernel, &step, Lang::OpenclC).unwrap().text;
                let left: Vec<_> = text.lines().filter(begins).collect();
                assert!(left.len() == 1 && left[0].contains(entry), "{} {} {entry}: {left:?}", op.name, kernel.variant);
                assert_eq!(
                    text.matches("__kernel").count(),
                    2,
                    "an entry that is not declared by the prelude's macros"
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "{seen} entries seen");
}

#[test]
fn matrix() {
    let mut text = String::new();
    for op in op::all() {
        let _ = write!(text, "{:<12}", op.name);
        for form in FORMS {
            let names: Vec<&str> = dtypes(op, form).iter().map(|d| d.name()).collect();
            let cell = if names.is_empty() { "-".to_string() } else { names.join(" ") };
            let _ = write!(text, "  {form}: {cell:<22}");
        }
        let special: BTreeSet<&str> = op.kernels.iter().filter(|k| serves(k).is_empty()).map(|k| k.variant).collect();
        let special: Vec<&str> = special.into_iter().collect();
        let _ = writeln!(text, "  cuda only: {}", if special.is_empty() { "-".into() } else { special.join(" ") });
    }
    println!("{text}");
    assert_eq!(text.lines().count(), op::all().count());
}

/// Every class of shapes and of data must be in the full tier of every op and dtype, or its absence be stated.
#[test]
fn the_full_tier_has_every_class_or_says_why_not() {
    let mut missing = Vec::new();
    for op in op::all() {
        for dtype in op.dtypes {
            missing.extend(missing_classes(op, *dtype, &(op.cases)(Tier::Full)));
        }
    }
    assert!(missing.is_empty(), "{} gaps:\n{}", missing.len(), missing.join("\n"));
}

/// What the cases of an op leave out without a reason, and reasons for what they do not leave out.
fn missing_classes(op: &'static OpDesc, dtype: DType, specs: &[CaseSpec]) -> Vec<String> {
    let cases: Vec<_> = specs.iter().filter_map(|s| op.case(dtype, &s.dims, s.attrs.clone(), s.fill).ok()).collect();
    let shapes: BTreeSet<ShapeClass> = cases.iter().flat_map(|c| op.classes(c)).collect();
    let mut out = Vec::new();
    for class in ShapeClass::ALL {
        let gap = op.gaps.iter().find_map(|g| match g {
            Gap::Shape(c, why) if *c == class => Some(*why),
            _ => None,
        });
        match (shapes.contains(&class), gap) {
            (false, None) => out.push(format!("{} {dtype}: no {} shape", op.name, class.name())),
            (false, Some(why)) if why.len() < 12 => out.push(format!("{}: '{why}' is no reason", op.name)),
            _ => {}
        }
    }
    for fill in Fill::ALL {
        let gap = op.gaps.iter().any(|g| matches!(g, Gap::Data(f, why) if *f == fill && why.len() >= 12));
        if !gap && !cases.iter().any(|c| c.fill == fill) {
            out.push(format!("{} {dtype}: no {fill} data", op.name));
        }
    }
    out
}

#[test]
fn a_class_that_is_taken_away_is_missed() {
    let op = op::find("gemm").unwrap();
    let all = (op.cases)(Tier::Full);
    let whole = missing_classes(op, DType::F32, &all).len();
    for class in
        ShapeClass::ALL.into_iter().filter(|c| !op.gaps.iter().any(|g| matches!(g, Gap::Shape(s, _) if s == c)))
    {
        let without: Vec<CaseSpec> = all
            .iter()
            .filter(|s| {
                let case = op.case(DType::F32, &s.dims, s.attrs.clone(), s.fill);
                case.is_ok_and(|c| !op.classes(&c).contains(&class))
            })
            .cloned()
            .collect();
        let missing = missing_classes(op, DType::F32, &without);
        assert!(missing.len() > whole, "{}", class.name());
    }
    let without: Vec<CaseSpec> = all.iter().filter(|s| s.fill != Fill::Special).cloned().collect();
    assert_eq!(missing_classes(op, DType::F32, &without).len(), whole + 1);
}

/// Where a function lies decides how fast a plain loop in it is, and a build that differs elsewhere must not change that.
#[test]
fn kernels_begin_where_cache_lines_do() {
    let mut begins = BTreeSet::new();
    for kernel in op::all().flat_map(|op| op.kernels) {
        if let Body::Native(run) = kernel.body {
            begins.insert(run as usize);
        }
    }
    assert!(begins.len() > 100, "{} functions", begins.len());
    let astray = begins.iter().filter(|at| *at % 64 != 0).count();
    let why = "built without .cargo/config.toml (RUSTFLAGS replaces its flags): add -Cllvm-args=-align-all-functions=6";
    assert_eq!(astray, 0, "of {} kernels; {why}", begins.len());
}
