//! Who may import whom: the table of docs/architecture.md.

use crate::scan::Source;
use crate::tree::Fault;

/// Direct edges; what is allowed is their transitive closure.
const LAYERS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("num", &["base"]),
    ("kernel", &["base"]),
    ("op", &["base", "kernel"]),
    ("device", &["base", "kernel"]),
    ("profile", &["base"]),
    ("engine", &["base", "op", "kernel", "device", "profile"]),
    ("tensor", &["engine"]),
    ("autodiff", &["tensor"]),
    ("nn", &["autodiff"]),
    ("measure", &["base", "engine"]),
    ("jobs", &["engine", "measure", "profile", "autodiff", "nn"]),
    ("report", &["base"]),
    ("cli", &["jobs", "report"]),
];

fn direct(layer: &str) -> Option<&'static [&'static str]> {
    LAYERS.iter().find(|(name, _)| *name == layer).map(|(_, below)| *below)
}

/// True if `layer` may name things of `other`.
pub(crate) fn allowed(layer: &str, other: &str) -> bool {
    layer == other || direct(layer).is_some_and(|below| below.iter().any(|b| allowed(b, other)))
}

/// Paths that point up, leave the table, or climb two modules at once.
pub(crate) fn faults(source: &Source) -> Vec<Fault> {
    let layer = source.layer();
    let fault = |line: usize, what: String| Fault { path: source.path.clone(), line, what };
    // The crate's roots (lib.rs, main.rs) tie the layers together.
    if !layer.is_empty() && direct(&layer).is_none() {
        return vec![fault(0, format!("'{layer}' is no layer; add it to the table here and in docs/architecture.md"))];
    }
    let mut out = Vec::new();
    for name in &source.names {
        let supers = name.segments.iter().take_while(|s| *s == "super").count();
        if supers > 1 {
            out.push(fault(name.line, "super::super: name the path from the crate's root".to_string()));
            continue;
        }
        let Some(target) = resolve(&name.module, &name.segments) else { continue };
        let Some(other) = target.first() else { continue };
        if layer.is_empty() || other.is_empty() {
            continue;
        }
        if direct(other).is_none() {
            let path = name.segments.join("::");
            out.push(fault(name.line, format!("{path}: name the layer, so that the direction can be seen")));
        } else if !allowed(&layer, other) {
            let path = name.segments.join("::");
            out.push(fault(name.line, format!("{path}: {layer} must not know {other}")));
        }
    }
    out.sort_by_key(|f| f.line);
    out
}

/// The path from the crate's root, for paths that lie in this crate.
fn resolve(module: &[String], segments: &[String]) -> Option<Vec<String>> {
    let rest = || segments[1..].to_vec();
    let below = |base: &[String]| Some(base.iter().cloned().chain(rest()).collect());
    match segments[0].as_str() {
        // A lone `crate` is the visibility `pub(crate)`.
        "crate" | "gpuctl" if segments.len() > 1 => Some(rest()),
        "self" if segments.len() > 1 => below(module),
        "super" if segments.len() > 1 => below(module.split_last().map_or(&[][..], |(_, up)| up)),
        _ => None,
    }
}
