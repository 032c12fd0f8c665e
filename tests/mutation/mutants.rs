//! Single-token changes of a C text and of the expressions that are defined for it.

/// One change.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Byte range replaced.
    from: usize,
    to: usize,
    token: String,
    with: &'static str,
    number: String,
    /// 1-based position.
    row: usize,
    column: usize,
    /// The line it is in.
    pub(crate) line: String,
    /// The kernel, function or macro it is in.
    pub(crate) within: String,
    /// The macro whose value is changed, for one that the planner defines: `EXPR(x, b)` and its value.
    pub(crate) defined: Option<(String, String)>,
}

impl Change {
    fn replacement(&self) -> &str {
        if self.number.is_empty() { self.with } else { &self.number }
    }
    /// The whole text with the change.
    pub(crate) fn apply(&self, text: &str) -> String {
        let changed = |of: &str| format!("{}{}{}", &of[..self.from], self.replacement(), &of[self.to..]);
        match &self.defined {
            None => changed(text),
            Some((macro_of, value)) => {
                let name = macro_of.split('(').next().unwrap();
                format!("#undef {name}\n#define {macro_of} {}\n{text}", changed(value))
            }
        }
    }
    /// `reduce.c: < at 21:26 -> <=`, `elementwise.c EXPR(x, b) = x / b: / at 3 -> *`.
    pub(crate) fn name(&self, file: &str) -> String {
        match &self.defined {
            None => format!("{file}: {} at {}:{} -> {}", self.token, self.row, self.column, self.replacement()),
            Some((macro_of, value)) => {
                format!("{file} {macro_of} = {value}: {} at {} -> {}", self.token, self.column, self.replacement())
            }
        }
    }
}

/// Longest first, so that `<=` is not taken for `<`.
const OPERATORS: &[(&str, &[&str])] = &[
    ("BARRIER();", &[";"]),
    ("<<", &[]),
    (">>", &[]),
    ("<=", &["<"]),
    (">=", &[">"]),
    ("==", &["!="]),
    ("!=", &["=="]),
    ("!", &[""]),
    ("&&", &["||"]),
    ("||", &["&&"]),
    ("+=", &["-=", "="]),
    ("-=", &["+="]),
    ("*=", &["/="]),
    ("/=", &[]),
    ("++", &[]),
    ("--", &[]),
    ("->", &[]),
    ("<", &["<="]),
    (">", &[">="]),
    ("+", &["-"]),
    ("-", &["+"]),
    ("*", &["+"]),
    ("/", &["*"]),
    ("%", &["/"]),
    ("LID(0)", &["LID(1)"]),
    ("LID(1)", &["LID(0)"]),
];

/// Names that are mistaken for each other: index, bound, size.
const NAMES: &[(&str, &str)] = &[
    ("m", "n"),
    ("n", "m"),
    ("i", "j"),
    ("j", "i"),
    ("row", "col"),
    ("col", "row"),
    ("a_row", "a_col"),
    ("b_row", "b_col"),
    ("lx", "ly"),
    ("outer", "inner"),
    ("inner", "outer"),
    ("RM", "RN"),
    ("h", "w"),
    ("w", "h"),
    ("oh", "ow"),
    ("ow", "oh"),
    ("kh", "kw"),
    ("kw", "kh"),
];

/// Every change of the value of a macro with arguments.
pub(crate) fn changes_of_value(macro_of: &str, value: &str) -> Vec<Change> {
    let mut out = changes_from(value, true);
    for c in &mut out {
        c.defined = Some((macro_of.to_string(), value.to_string()));
        c.within = name_at(macro_of).to_string();
    }
    out
}

/// The identifier that a text begins with.
fn name_at(text: &str) -> &str {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or("")
}

/// The name that a line defines: a kernel, a function, a macro.
fn defines(line: &str) -> Option<&str> {
    let kernel = line.strip_prefix("KERNEL_WG(").or_else(|| line.strip_prefix("KERNEL("));
    if let Some(rest) = kernel.or_else(|| line.strip_prefix("#define ")) {
        return Some(name_at(rest));
    }
    // FUNCTION type name(arguments) { ... }
    let head = line.strip_prefix("FUNCTION ")?.split('(').next()?;
    head.split_whitespace().last()
}

/// Every kernel, function and macro of a text with the words of its definition.
pub(crate) fn definitions(text: &str) -> Vec<(String, Vec<String>)> {
    let mut out: Vec<(String, Vec<String>)> = Vec::new();
    let plain: Vec<&str> = text.split("*/").map(|part| part.split("/*").next().unwrap_or("")).collect();
    for line in plain.concat().lines() {
        if let Some(name) = defines(line) {
            out.push((name.to_string(), Vec::new()));
        }
        if let Some((_, words)) = out.last_mut() {
            words.extend(words_of(line));
        }
    }
    out
}

/// The identifiers of a text.
pub(crate) fn words_of(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|w| !w.is_empty()).map(str::to_string)
}

/// Macros that ask for memory ahead of its use. They compute nothing, whatever they are given, so what they are given is not
/// changed.
const AHEAD: [&str; 3] = ["PREFETCH", "READ_AHEAD", "NEXT_ROW"];

/// Length up to the end of the arguments that a text begins with, if it does.
fn arguments(text: &str) -> usize {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        depth = match byte {
            b'(' => depth + 1,
            b')' => depth.saturating_sub(1),
            _ => depth,
        };
        if depth == 0 {
            return if at == 0 { 0 } else { at + 1 };
        }
    }
    text.len()
}

/// Every change of the bodies of kernels, functions and macros with arguments: no comment, other preprocessor line or
/// declaration of parameters, and nothing that is [`AHEAD`].
pub(crate) fn changes(text: &str) -> Vec<Change> {
    changes_from(text, false)
}

/// Length of a preprocessor line with its continuations, and of its part before the value if it defines a macro with
/// arguments.
fn preprocessor(rest: &str) -> (usize, Option<usize>) {
    let mut len = 0;
    for line in rest.split_inclusive('\n') {
        len += line.len();
        if !line.trim_end().ends_with('\\') {
            break;
        }
    }
    let called = rest.strip_prefix("#define ").and_then(|r| r.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
    let open = called.map(|n| n + "#define ".len()).filter(|at| rest[*at..].starts_with('('));
    (len, open.and_then(|at| rest[at..len].find(')').map(|close| at + close + 1)))
}

fn changes_from(text: &str, value: bool) -> Vec<Change> {
    let bytes = text.as_bytes();
    let mut out: Vec<Change> = Vec::new();
    let (mut at, mut depth, mut within) = (0usize, usize::from(value), String::new());
    // Where the value of the macro ends that is being read.
    let mut macro_end = 0;
    let ident = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let declared = |from: usize, name: &str| {
        // Both names must exist in this body, or the mutant does not compile.
        let rest = &text[from..];
        let end = rest.find("\n}").unwrap_or(rest.len());
        let start = text[..from].rfind("\n}").map_or(0, |p| p + 2);
        text[start..from + end].split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|w| w == name)
    };
    while at < bytes.len() {
        let rest = &text[at..];
        if (at == 0 || bytes[at - 1] == b'\n')
            && let Some(name) = defines(rest.lines().next().unwrap_or(""))
        {
            within = name.to_string();
        }
        if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |p| p + 2);
            continue;
        }
        if rest.starts_with('#') && (at == 0 || bytes[at - 1] == b'\n') {
            let (len, head) = preprocessor(rest);
            match head {
                Some(head) => {
                    macro_end = at + len;
                    at += head;
                }
                None => at += len,
            }
            continue;
        }
        match bytes[at] {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && at >= macro_end {
            at += 1;
            continue;
        }
        let mut push = |len: usize, with: &'static str, number: String| {
            let row = text[..at].matches('\n').count() + 1;
            let start = text[..at].rfind('\n').map_or(0, |p| p + 1);
            let line = text[start..].lines().next().unwrap_or("").trim().to_string();
            let token = text[at..at + len].to_string();
            let column = at - start + 1;
            let (from, to, within, defined) = (at, at + len, within.clone(), None);
            out.push(Change { from, to, token, with, number, row, column, line, within, defined });
        };
        if let Some((op, withs)) = OPERATORS.iter().find(|(op, _)| rest.starts_with(op)) {
            // `*` of a pointer's declaration and unary minus do not compile or mean something else.
            let pointer = *op == "*" && (rest.starts_with("*RESTRICT") || text[..at].ends_with("T "));
            let called = op.starts_with(|c: char| c.is_ascii_alphabetic()) && at > 0 && ident(bytes[at - 1]);
            if !pointer && !called {
                for with in *withs {
                    push(op.len(), with, String::new());
                }
                at += op.len();
                continue;
            }
        }
        if ident(bytes[at]) {
            let len = rest.bytes().take_while(|b| ident(*b) || *b == b'.').count();
            let word = &rest[..len];
            if AHEAD.contains(&word) {
                at += len + arguments(&rest[len..]);
                continue;
            }
            if let Ok(n) = word.trim_end_matches(['u', 'U']).parse::<u64>() {
                push(len, "", (n + 1).to_string());
            } else if let Some((_, with)) = NAMES.iter().find(|(a, b)| *a == word && declared(at, b)) {
                // Not where it is declared.
                let before = text[..at].trim_end();
                let declared_here =
                    before.ends_with(|c: char| c.is_ascii_alphanumeric()) && !before.ends_with("return");
                if !declared_here {
                    push(len, with, String::new());
                }
            }
            at += len;
            continue;
        }
        at += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asks_for_memory_ahead_is_left_as_it_is() {
        let text = "KERNEL_WG(f, 1, 1, 1)(u64 n) {\n    PREFETCH(x + MIN(i + 1, n - 1)); y[i] = 1;\n}\n";
        let names: Vec<_> = changes(text).iter().map(|c| c.name("f.c")).collect();
        assert_eq!(names, ["f.c: 1 at 2:45 -> 2"]);
        assert_eq!(["", "x", "(a, (b)) c", "(a"].map(arguments), [0, 0, 8, 2]);
    }

    #[test]
    fn changes_are_single_and_inside_bodies() {
        let text = "/* a < b */\n#define X(a) (a - 1)\n#define Y a + \\\n b\nKERNEL_WG(f, 1, 1, 1)(GLOBAL const T *RESTRICT x, u64 n) {\n    \
                    if (i < n) {\n        y[i] = x[i] + 2;\n        BARRIER();\n    }\n}\n";
        let all = changes(text);
        let names: Vec<_> = all.iter().map(|c| c.name("f.c")).collect();
        assert_eq!(
            names,
            [
                "f.c: - at 2:17 -> +",
                "f.c: 1 at 2:19 -> 2",
                "f.c: < at 6:11 -> <=",
                "f.c: + at 7:21 -> -",
                "f.c: 2 at 7:23 -> 3",
                "f.c: BARRIER(); at 8:9 -> ;"
            ]
        );
        assert!(all.iter().all(|c| c.within == if c.row == 2 { "X" } else { "f" }));
        let defined: Vec<_> =
            definitions("FUNCTION K key(K b) { return b; }\n/* c */\n#define Y key(1)\n").into_iter().collect();
        assert_eq!((defined[0].0.as_str(), defined[1].0.as_str()), ("key", "Y"));
        assert!(defined[1].1.contains(&"key".to_string()));
        assert!(all[2].apply(text).contains("if (i <= n)"));
        assert_eq!(all[4].apply(text).len(), text.len());
        let [of_value] = &changes_of_value("EXPR(x, b)", "x / b")[..] else { panic!() };
        assert_eq!(of_value.name("f.c"), "f.c EXPR(x, b) = x / b: / at 3 -> *");
        assert_eq!(of_value.apply("body"), "#undef EXPR\n#define EXPR(x, b) x * b\nbody");
    }
}
