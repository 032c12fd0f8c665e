//! Kernels that watch themselves (`GPUCTL_DEBUG_KERNELS=1`): every access to a buffer is checked against its length, and
//! every float that is stored for NaN (which counts if all operands held finite numbers above 0). The first violation is reported with its line and place; the access itself is
//! moved to element 0, so that nothing is damaged.
//!
//! The common C dialect is rewritten: an entry's buffers get a report behind them and their lengths behind the scalars,
//! and every index into them passes through `debug_at`. What the report holds is in [`Report`].

use crate::base::{Code, Error, Result};

/// Words of the report buffer, all u32.
pub const WORDS: usize = 32;

/// What the first violation was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// An index out of bounds, else a NaN that was stored.
    pub bounds: bool,
    /// Line of the kernel file.
    pub line: u32,
    /// Group, per axis.
    pub group: [u32; 3],
    /// Work-item in its group, per axis.
    pub item: [u32; 3],
    /// The index.
    pub index: u64,
    /// Elements of the buffer.
    pub limit: u64,
}

impl Report {
    /// Reads the report buffer: an index out of bounds, else, if `nan` says that none is expected, a NaN that was stored.
    /// `None` if nothing was violated.
    pub fn read(words: &[u32], nan: bool) -> Option<Self> {
        let bounds = words.get(..16).and_then(Self::one);
        bounds.or_else(|| words.get(16..).filter(|_| nan).and_then(Self::one))
    }

    fn one(words: &[u32]) -> Option<Self> {
        let [kind, line, g0, g1, g2, l0, l1, l2, index_low, index_high, limit_low, limit_high, ..] = words[..] else {
            return None;
        };
        (kind != 0).then(|| Report {
            bounds: kind == 1,
            line,
            group: [g0, g1, g2],
            item: [l0, l1, l2],
            index: u64::from(index_high) << 32 | u64::from(index_low),
            limit: u64::from(limit_high) << 32 | u64::from(limit_low),
        })
    }

    /// The report as an error that names the kernel.
    pub fn error(&self, entry: &str) -> Error {
        let place = format!("line {}, group {:?}, work-item {:?}", self.line, self.group, self.item);
        let what = match self.bounds {
            true => format!("index {} of a buffer of {} elements", self.index, self.limit),
            false => format!("a NaN stored at index {}", self.index),
        };
        Error::new(Code::ResultWrong, format!("kernel {entry}, {place}: {what}"))
    }
}

/// Functions that the rewritten text calls; `ATOMIC_CAS` is the preludes'.
const RUNTIME: &str = "
FUNCTION void debug_note(GLOBAL u32 *debug_report, u32 kind, u64 index, u64 limit, u32 line) {
    u32 at = kind == 1u ? 0u : 16u;
    if (ATOMIC_CAS(debug_report + at, 0u, kind) == 0u) {
        debug_report[at + 1] = line;
        debug_report[at + 2] = GRP(0);
        debug_report[at + 3] = GRP(1);
        debug_report[at + 4] = GRP(2);
        debug_report[at + 5] = LID(0);
        debug_report[at + 6] = LID(1);
        debug_report[at + 7] = LID(2);
        debug_report[at + 8] = (u32)index;
        debug_report[at + 9] = (u32)(index >> 32);
        debug_report[at + 10] = (u32)limit;
        debug_report[at + 11] = (u32)(limit >> 32);
    }
}
FUNCTION u64 debug_at(GLOBAL u32 *debug_report, u64 index, u64 limit, u32 line) {
    if (index < limit) return index;
    debug_note(debug_report, 1u, index, limit, line);
    return 0;
}
#define DEBUG_LENGTH(p) ((p##_limit + sizeof(*(p)) - 1) / sizeof(*(p)))
#define DEBUG_AT(p, i) debug_at(debug_report, (u64)(i), DEBUG_LENGTH(p), __LINE__)
#define DEBUG_NAN(p, i, v) \\
    do { if ((v) != (v)) debug_note(debug_report, 2u, (u64)(i), DEBUG_LENGTH(p), __LINE__); } while (0)
#define DEBUG_LANES(p, i) (DEBUG_AT(p, (u64)(i) + LANES - 1) < LANES - 1 ? 0 : (u64)(i))
#define DEBUG_NAN_LANES(p, i, v) \\
    do { if (any((v) != (v))) debug_note(debug_report, 2u, (u64)(i), DEBUG_LENGTH(p), __LINE__); } while (0)
";

/// Defines of the accessors with every index checked: `LOAD(p, i)` and so on as `source::c_types` writes them.
pub(super) fn defines(defines: &[(String, String)]) -> Vec<(String, String)> {
    let checked = |(name, value): &(String, String)| {
        let load = name.starts_with("LOAD");
        if !load && !name.starts_with("STORE") {
            return (name.clone(), value.clone());
        }
        let vector = name.contains("_VECTOR") || name.contains("_PLACES");
        let (at, nan) = if vector { ("DEBUG_LANES", "DEBUG_NAN_LANES") } else { ("DEBUG_AT", "DEBUG_NAN") };
        // The index appears once in each, as `[i]` or as an argument.
        let value = if value.contains("[i]") {
            value.replacen("[i]", &format!("[{at}(p, i)]"), 1)
        } else {
            value.replacen("(p, i", &format!("(p, {at}(p, i)"), 1)
        };
        let value = if load { value } else { format!("do {{ {nan}(p, i, v); {value}; }} while (0)") };
        (name.clone(), value)
    };
    defines.iter().map(checked).collect()
}

/// The body with its entries' parameters extended and every `buffer[index]` checked.
///
/// Fails if an entry cannot be understood, so that no kernel runs unwatched under this name.
pub(super) fn body(text: &str) -> Result<String> {
    let mut out = String::from(RUNTIME);
    out.push_str("#line 1\n");
    let mut rest = text;
    while let Some(at) = rest.find("KERNEL_WG(").into_iter().chain(rest.find("KERNEL(")).min() {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let open = closing(from, from.find('(').unwrap_or(0)).ok_or_else(|| lost(from))? + 1;
        let list = from[open..].find('(').map(|p| p + open).ok_or_else(|| lost(from))?;
        let end = closing(from, list).ok_or_else(|| lost(from))?;
        let brace = from[end..].find('{').map(|p| p + end).ok_or_else(|| lost(from))?;
        let close = closing_brace(from, brace).ok_or_else(|| lost(from))?;
        let buffers = buffers(&from[list + 1..end]);
        if buffers.is_empty() {
            return Err(lost(from));
        }
        out.push_str(&from[..=list]);
        out.push_str(&parameters(&from[list + 1..end], &buffers));
        out.push_str(&from[end..=brace]);
        out.push_str(&checked(&from[brace + 1..close], &buffers));
        rest = &from[close..];
    }
    out.push_str(rest);
    Ok(out)
}

fn lost(from: &str) -> Error {
    let head: String = from.chars().take(40).collect();
    Error::new(Code::Internal, format!("GPUCTL_DEBUG_KERNELS: cannot read the kernel at '{head}'"))
}

fn matching(text: &str, open: usize, pair: (u8, u8)) -> Option<usize> {
    let mut depth = 0usize;
    for (i, b) in text.bytes().enumerate().skip(open) {
        if b == pair.0 {
            depth += 1;
        } else if b == pair.1 {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                return Some(i);
            }
        }
    }
    None
}

fn closing(text: &str, open: usize) -> Option<usize> {
    matching(text, open, (b'(', b')'))
}

fn closing_brace(text: &str, open: usize) -> Option<usize> {
    matching(text, open, (b'{', b'}'))
}

/// Names of the pointers among an entry's parameters.
fn buffers(list: &str) -> Vec<&str> {
    let of = |p: &'_ str| p.contains("GLOBAL").then(|| p.trim().rsplit([' ', '*']).next().unwrap_or("").to_string());
    list.split(',').filter(|p| of(p).is_some()).map(|p| p.trim().rsplit([' ', '*']).next().unwrap_or("")).collect()
}

/// The parameters with the report behind the last buffer and the lengths in bytes at the end.
fn parameters(list: &str, buffers: &[&str]) -> String {
    let mut parts: Vec<String> = list.split(',').map(str::to_string).collect();
    let last = parts.iter().rposition(|p| p.contains("GLOBAL")).unwrap_or(0);
    parts.insert(last + 1, " GLOBAL u32 *RESTRICT debug_report".into());
    parts.extend(buffers.iter().map(|b| format!(" u64 {b}_limit")));
    parts.join(",")
}

/// Every `name[index]` with the index checked.
fn checked(body: &str, buffers: &[&str]) -> String {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let bytes = body.as_bytes();
    let mut out = String::with_capacity(body.len() * 2);
    let mut at = 0;
    while at < bytes.len() {
        let here = &body[at..];
        let starts = at == 0 || !(word(bytes[at - 1]) || bytes[at - 1] == b'.');
        let hit = buffers.iter().find(|n| starts && here.starts_with(**n) && here[n.len()..].starts_with('['));
        if let Some(name) = hit
            && let Some(close) = matching(here, name.len(), (b'[', b']'))
        {
            let index = checked(&here[name.len() + 1..close], buffers);
            out.push_str(&format!("{name}[DEBUG_AT({name}, {index})]"));
            at += close + 1;
            continue;
        }
        let next = here.chars().next().unwrap_or(' ');
        out.push(next);
        at += next.len_utf8();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_get_a_report_and_lengths_and_every_index_is_checked() {
        let text = "/* doc */\nKERNEL_WG(f, GROUP, 1, 1)(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, u64 n) {\n    \
                    u64 i = LID(0);\n    if (i < n) { y[i] = x[x[i] + 1]; max[i] = 0; }\n}\n";
        let made = body(text).unwrap();
        assert!(made.contains(
            "(GLOBAL const T *RESTRICT x, GLOBAL T *RESTRICT y, GLOBAL u32 *RESTRICT debug_report, u64 n, u64 x_limit, \
             u64 y_limit) {"
        ));
        assert!(made.contains("y[DEBUG_AT(y, i)] = x[DEBUG_AT(x, x[DEBUG_AT(x, i)] + 1)]; max[i] = 0;"), "{made}");
        // Lines count from the kernel file's first.
        let line = made.split("#line 1\n").nth(1).unwrap().lines().position(|l| l.contains("DEBUG_AT(y")).unwrap() + 1;
        assert_eq!(line, 4);
        assert!(body("KERNEL_WG(f, 1, 1, 1)(u64 n) { }").is_err(), "an entry without buffers is not understood");
    }

    #[test]
    fn accessors_are_checked_and_stores_look_for_nan() {
        let given = [
            ("T".to_string(), "f32".to_string()),
            ("LOAD(p, i)".into(), "((ACC)(p)[i])".into()),
            ("STORE(p, i, v)".into(), "F16_STORE(p, i, v)".into()),
            ("STORE_VECTOR(p, i, v)".into(), "vstore16((v), 0, &(p)[i])".into()),
        ];
        let made = defines(&given);
        assert_eq!(made[0], given[0]);
        assert_eq!(made[1].1, "((ACC)(p)[DEBUG_AT(p, i)])");
        assert_eq!(made[2].1, "do { DEBUG_NAN(p, i, v); F16_STORE(p, DEBUG_AT(p, i), v); } while (0)");
        assert_eq!(made[3].1, "do { DEBUG_NAN_LANES(p, i, v); vstore16((v), 0, &(p)[DEBUG_LANES(p, i)]); } while (0)");
    }

    #[test]
    fn reports_are_read() {
        assert_eq!(Report::read(&[0; WORDS], true), None);
        let mut words = [0u32; WORDS];
        words[..12].copy_from_slice(&[1, 12, 3, 0, 0, 7, 0, 0, 257, 0, 256, 0]);
        let text = Report::read(&words, true).unwrap().error("unary").to_string();
        assert!(text.contains("kernel unary, line 12, group [3, 0, 0], work-item [7, 0, 0]"), "{text}");
        assert!(text.contains("index 257 of a buffer of 256 elements"), "{text}");
        let mut words = [0u32; WORDS];
        words[16..18].copy_from_slice(&[2, 9]);
        assert_eq!(Report::read(&words, false), None, "NaN in, NaN out");
        assert!(Report::read(&words, true).unwrap().error("f").to_string().contains("line 9"));
    }
}
