//! How entries are called in messages, and whether what they state hangs together.

use crate::base::text::{is_plain, printable};
use crate::base::{Code, Error, Result};

use super::{Entry, Kind, Profile, Verdict, seal, with_margin};

/// An entry's position and key for people: `entry 3 (gemm f32 square on opencl:0 resident)`.
pub(super) fn label(p: &Profile, at: usize) -> String {
    let Some(e) = p.entries.get(at) else { return format!("entry {}", at + 1) };
    let device = p.devices.iter().find(|d| d.uid == e.device).map_or(&e.device, |d| &d.id);
    named(at, [&e.op, &e.dtype, &e.family, device, &e.residency])
}

/// The same from a file that may be no profile.
pub(super) fn label_of(table: &toml::Table, at: usize) -> String {
    let Some(e) = seal::entries(table).nth(at) else { return format!("entry {}", at + 1) };
    let word = |t: &toml::Table, key: &str| t.get(key).and_then(toml::Value::as_str).unwrap_or("?").to_string();
    let devices = table.get("device").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut devices = devices.iter().filter_map(toml::Value::as_table);
    let uid = word(e, "device");
    let device = devices.find(|d| word(d, "uid") == uid).map_or(uid.clone(), |d| word(d, "id"));
    named(at, [&word(e, "op"), &word(e, "dtype"), &word(e, "family"), &device, &word(e, "residency")])
}

fn named(at: usize, words: [&String; 5]) -> String {
    let [op, dtype, family, device, residency] = words.map(|w| clip(w));
    format!("entry {} ({op} {dtype} {family} on {device} {residency})", at + 1)
}

/// A word from a file, short and printable.
pub(super) fn clip(word: &str) -> String {
    let short: String = word.chars().take(64).collect();
    let dots = if short.len() < word.len() { "..." } else { "" };
    format!("{}{dots}", printable(&short).replace(['\n', '\t'], " "))
}

/// Checks what calibrate states about every entry that nobody edited: the threshold is what crossing and margin give, and
/// lies at sizes that were measured.
pub(super) fn evidence(p: &Profile) -> Result<()> {
    let measured = |e: &Entry| p.kind == Kind::Calibrated && !e.edited;
    for (i, e) in p.entries.iter().enumerate().filter(|(_, e)| measured(e)) {
        let bad = |why: String| Err(Error::new(Code::ProfileParse, format!("{}: {why}", label(p, i))));
        let (Some(first), Some(last)) = (e.points.first(), e.points.last()) else { continue };
        let range = first.size..=last.size;
        match (e.verdict, e.crossing, e.threshold) {
            (Verdict::Crossing, Some(c), Some(t)) if t != with_margin(c, p.margin) => {
                let want = with_margin(c, p.margin);
                return bad(format!(
                    "threshold {t}, but crossing {c} x margin {} is {want} (`gpuctl profile set margin=M FILE` sets both)",
                    p.margin
                ));
            }
            (Verdict::Crossing, Some(c), _) if !range.contains(&c) => {
                return bad(format!("crossing {c} lies outside the sizes measured, {} to {}", first.size, last.size));
            }
            (Verdict::Crossing, None, _) => return bad("a measured crossing must be stated".into()),
            (Verdict::Always, _, Some(t)) if t >= first.size => {}
            (Verdict::Always, ..) => {
                return bad(format!("nothing is known below the smallest size measured, {}", first.size));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Most bytes of a name.
pub(super) const WORD: usize = 256;

pub(super) fn is_word(text: &str) -> bool {
    text.len() <= WORD && is_plain(text)
}

/// The form of `created`: `2026-01-31T12:00:00Z`, so that the order of texts is the order of times.
pub(super) fn is_time(text: &str) -> bool {
    let digit_or = |(t, p): (u8, u8)| if p == b'0' { t.is_ascii_digit() } else { t == p };
    let pattern = b"0000-00-00T00:00:00Z";
    text.len() == pattern.len() && text.bytes().zip(*pattern).all(digit_or)
}
