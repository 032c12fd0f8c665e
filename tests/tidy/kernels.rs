//! Rules about kernel texts.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};

use crate::tree::{self, Fault, File};

/// Names that one prelude defines and the other does not. Names that begin with `_` or `prelude_` are one side's own
/// helpers; [`conditionals`] keeps bodies from using them.
pub(crate) fn prelude_difference(cl: &str, cu: &str) -> Vec<Fault> {
    let (in_cl, in_cu) = (defined(cl), defined(cu));
    let missing = |from: &BTreeSet<String>, other: &BTreeSet<String>, path: &str| {
        let of = |n: &String| Fault { path: path.into(), line: 0, what: format!("{n} is not defined here") };
        from.difference(other).map(of).collect::<Vec<_>>()
    };
    let mut out = missing(&in_cl, &in_cu, "kernels/prelude.cu");
    out.extend(missing(&in_cu, &in_cl, "kernels/prelude.cl"));
    out
}

/// Macros, typedefs and functions that a text defines at its top level.
fn defined(text: &str) -> BTreeSet<String> {
    let word = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let name = if let Some(rest) = line.trim_start().strip_prefix('#') {
            rest.trim_start().strip_prefix("define").map(|r| word(r.trim_start()))
        } else if line.starts_with("typedef") {
            line.split([';', '{']).next().and_then(|l| l.split_whitespace().last()).map(word)
        } else if line.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && line.contains('(')
            && !line.trim_end().ends_with(';')
        {
            // `static inline T name(` at the left margin.
            line.split('(').next().and_then(|l| l.split_whitespace().last()).map(|l| word(l.trim_start_matches('*')))
        } else {
            None
        };
        names.extend(name.filter(|n| !n.is_empty() && !n.starts_with('_') && !n.starts_with("prelude_")));
    }
    names
}

/// Conditional compilation in a body of the common dialect, and helpers that only one prelude has.
pub(crate) fn conditionals(file: &File) -> Vec<Fault> {
    if !(file.path.starts_with("kernels/") && file.path.ends_with(".c")) {
        return Vec::new();
    }
    let is = |line: &str| {
        line.trim_start().strip_prefix('#').is_some_and(|r| r.trim_start().starts_with("if"))
            || line.contains("prelude_")
            || line.contains("__")
    };
    let what = "a conditional or a name of one language: differences belong into the preludes".to_string();
    let lines = file.text.lines().enumerate().filter(|(_, l)| is(l));
    lines.map(|(i, _)| Fault { path: file.path.clone(), line: i + 1, what: what.clone() }).collect()
}

/// Names that the WGSL plans fill in: every string literal of capitals in their file, and what the assembly adds.
pub(crate) fn known_substitutions() -> Vec<String> {
    let mut names = vec!["EXPR".to_string()];
    for file in tree::files().iter().filter(|f| f.path.starts_with("src/kernel/") && f.path.contains("wgsl")) {
        let tokens: TokenStream = file.text.parse().unwrap_or_else(|e| panic!("{}: {e}", file.path));
        literals(tokens, &mut names);
    }
    names
}

fn literals(tokens: TokenStream, out: &mut Vec<String>) {
    for tree in tokens {
        match tree {
            TokenTree::Group(g) => literals(g.stream(), out),
            TokenTree::Literal(l) => {
                let text = l.to_string();
                let name = text.trim_matches('"');
                let capitals = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
                if text.starts_with('"') && !name.is_empty() && name.chars().all(capitals) {
                    out.push(name.to_string());
                }
            }
            _ => {}
        }
    }
}

/// Substitutions that no plan fills, and braces that do not match.
pub(crate) fn substitutions(file: &File, known: &[String]) -> Vec<Fault> {
    if !(file.path.starts_with("kernels/") && file.path.ends_with(".wgsl")) {
        return Vec::new();
    }
    let mut out = Vec::new();
    for (i, line) in file.text.lines().enumerate() {
        let mut fault = |what: String| out.push(Fault { path: file.path.clone(), line: i + 1, what });
        for part in line.split("{{").skip(1) {
            match part.split_once("}}") {
                Some((name, _)) if known.iter().any(|k| k == name) => {}
                Some((name, _)) => fault(format!("{{{{{name}}}}} is filled by no plan")),
                None => fault("'{{' without '}}'".to_string()),
            }
        }
    }
    out
}
