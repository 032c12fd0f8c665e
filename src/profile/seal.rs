//! What tells a file that was changed from one that was not: a digest over its bytes, and a seal per entry.
//!
//! The digest finds any change; the seals say which entries it touched, so that `lint --seal` voids the evidence of
//! those and of no others. Neither is a signature: whoever wants to forge a file can.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::base::rng::fnv1a64;
use crate::base::{Code, Error, Result};

/// The key of an entry's seal.
pub(super) const KEY: &str = "seal";

/// Hexadecimal text of a digest or seal.
fn hex(value: u64) -> String {
    format!("{value:016x}")
}

/// The text without what editors add to every line or at the beginning: CRLF, a byte order mark.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    match (text.strip_prefix('\u{feff}'), text.contains("\r\n")) {
        (None, false) => Cow::Borrowed(text),
        (rest, _) => Cow::Owned(rest.unwrap_or(text).replace("\r\n", "\n")),
    }
}

/// The text closed by the digest's line.
pub(super) fn close(mut text: String) -> String {
    let digest = hex(fnv1a64(text.as_bytes()));
    text.push_str(&format!("digest = \"{digest}\"\n"));
    text
}

/// Whether the digest of a text is right; an error if it has none.
pub(super) fn check(text: &str) -> Result<()> {
    let (sealed, digest) = split(text)?;
    let actual = fnv1a64(sealed.as_bytes());
    if actual == digest {
        return Ok(());
    }
    Err(Error::new(Code::ProfileDigest, format!("the digest says {}, the text gives {}", hex(digest), hex(actual))))
}

/// The sealed text before the digest's line, and the digest.
fn split(text: &str) -> Result<(&str, u64)> {
    let truncated = |why: &str| Error::new(Code::ProfileTruncated, why);
    // Without the line end the last line may itself be cut short.
    let inner = text.strip_suffix('\n').ok_or_else(|| truncated("the last line is incomplete"))?;
    let start = inner.rfind('\n').map_or(0, |at| at + 1);
    let sealed = &text[..start];
    let digest = inner[start..]
        .strip_prefix("digest = \"")
        .and_then(|rest| rest.strip_suffix('"'))
        .ok_or_else(|| truncated("the last line is not the digest of [end]"))?;
    if !sealed.lines().rev().take(3).any(|line| line == "[end]") {
        return Err(truncated("there is no [end] before the last line"));
    }
    let valid = digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let value = u64::from_str_radix(digest, 16).ok().filter(|_| valid);
    value.map(|v| (sealed, v)).ok_or_else(|| Error::new(Code::ProfileDigest, "the digest is not 16 hexadecimal digits"))
}

/// What the entries' evidence rests on elsewhere in the file: the host's CPU, instruction set and BLAS, and the fingerprint of
/// each device.
pub(super) struct Ground<'t> {
    host: [Option<&'t toml::Value>; 2],
    /// Left out where there is none, as in profiles that were sealed before there could be one.
    blas: Option<&'t toml::Value>,
    fingerprints: HashMap<&'t str, &'t toml::Value>,
}

impl<'t> Ground<'t> {
    pub(super) fn of(table: &'t toml::Table) -> Self {
        let host = table.get("host").and_then(toml::Value::as_table);
        let devices = table.get("device").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
        let named = |d: &'t toml::Value| Some((d.get("uid")?.as_str()?, d.get("fingerprint")?));
        Ground {
            host: ["cpu", "isa"].map(|key| host.and_then(|h| h.get(key))),
            blas: host.and_then(|h| h.get("blas")),
            fingerprints: devices.iter().filter_map(named).collect(),
        }
    }

    /// The seal of an entry: over all its values, known to this build or not, and over what they rest on. Spaces,
    /// comments and the order of keys do not count.
    pub(super) fn seal(&self, entry: &toml::Table) -> String {
        let mut bytes = Vec::new();
        self.host.iter().for_each(|v| encode(*v, &mut bytes));
        self.blas.into_iter().for_each(|v| encode(Some(v), &mut bytes));
        let uid = entry.get("device").and_then(toml::Value::as_str);
        encode(uid.and_then(|uid| self.fingerprints.get(uid)).copied(), &mut bytes);
        encode_table(entry, &mut bytes);
        hex(fnv1a64(&bytes))
    }
}

/// Entries of a file that are not as they were sealed, by position.
pub(super) fn broken(table: &toml::Table) -> Vec<usize> {
    let ground = Ground::of(table);
    let unsealed = |e: &toml::Table| e.get(KEY).and_then(toml::Value::as_str) != Some(ground.seal(e).as_str());
    entries(table).enumerate().filter(|(_, e)| unsealed(e)).map(|(i, _)| i).collect()
}

/// The entries of a file.
pub(super) fn entries(table: &toml::Table) -> impl Iterator<Item = &toml::Table> {
    let list = table.get("entry").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(toml::Value::as_table)
}

/// A value as bytes that no other value has: a letter for its type, then its length or bits. Own, because a TOML
/// writer's spelling of numbers may change from one version to the next.
fn encode(value: Option<&toml::Value>, out: &mut Vec<u8>) {
    let mut text = |tag: u8, s: &str| {
        out.push(tag);
        out.extend((s.len() as u64).to_le_bytes());
        out.extend(s.as_bytes());
    };
    match value {
        None => out.push(b'-'),
        Some(toml::Value::String(s)) => text(b's', s),
        Some(toml::Value::Datetime(d)) => text(b'd', &d.to_string()),
        Some(toml::Value::Integer(i)) => {
            out.push(b'i');
            out.extend(i.to_le_bytes());
        }
        Some(toml::Value::Float(f)) => {
            out.push(b'f');
            out.extend(f.to_bits().to_le_bytes());
        }
        Some(toml::Value::Boolean(b)) => out.extend([b'b', u8::from(*b)]),
        Some(toml::Value::Array(list)) => {
            out.push(b'a');
            out.extend((list.len() as u64).to_le_bytes());
            list.iter().for_each(|v| encode(Some(v), out));
        }
        Some(toml::Value::Table(t)) => encode_table(t, out),
    }
}

fn encode_table(table: &toml::Table, out: &mut Vec<u8>) {
    let mut keys: Vec<&String> = table.keys().filter(|k| *k != KEY).collect();
    keys.sort_unstable();
    out.push(b't');
    out.extend((keys.len() as u64).to_le_bytes());
    for key in keys {
        out.extend((key.len() as u64).to_le_bytes());
        out.extend(key.as_bytes());
        encode(table.get(key), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[host]\ncpu = \"C\"\nisa = \"avx2\"\n[[device]]\nuid = \"u\"\nfingerprint = \"F\"\n\
        [[entry]]\nop = \"add\"\ndevice = \"u\"\nthreshold = 12\npoints = [[1, 2.0]]\ncurve = { a = 1.5 }\n";

    fn seal(text: &str) -> String {
        let table: toml::Table = text.parse().unwrap();
        let entry = entries(&table).next().unwrap().clone();
        Ground::of(&table).seal(&entry)
    }

    /// A seal from before there were libraries still holds, and taking a library's name away, or another one, breaks one.
    #[test]
    fn a_library_is_part_of_the_ground_where_there_is_one() {
        let with = |name: &str| seal(&TEXT.replacen("\"avx2\"\n", &format!("\"avx2\"\nblas = \"{name}\"\n"), 1));
        assert_eq!(seal(TEXT), "13c4638fed99afd3");
        assert_ne!(with("MKL 2026.0, AVX-512"), with("OpenBLAS 0.3.21, Prescott"));
        assert_ne!(with(""), seal(TEXT));
    }

    #[test]
    fn every_value_counts_and_no_spelling() {
        let own = seal(TEXT);
        for (from, to) in [
            ("\"add\"", "\"dad\""),
            ("threshold = 12", "threshold = 13"),
            ("threshold = 12", "threshold = 12.0"),
            ("threshold = 12", "threshold = \"12\""),
            ("[1, 2.0]", "[1, 2.1]"),
            ("[[1, 2.0]]", "[1, 2.0]"),
            ("a = 1.5", "b = 1.5"),
            ("\"C\"", "\"D\""),
            ("avx2", "avx512"),
            ("\"avx2\"\n", "\"avx2\"\nblas = \"MKL 2026.0, AVX-512\"\n"),
            ("\"F\"", "\"G\""),
            ("points", "unknown"),
        ] {
            assert_ne!(seal(&TEXT.replacen(from, to, 1)), own, "{from} -> {to}");
        }
        for (from, to) in [
            ("threshold = 12\npoints", "# a remark\nthreshold    = 0xc\nseal = \"x\"\npoints"),
            ("op = \"add\"\ndevice = \"u\"", "device = 'u'\nop = 'add'"),
            ("2.0", "20e-1"),
        ] {
            assert_eq!(seal(&TEXT.replacen(from, to, 1)), own, "{from} -> {to}");
        }
    }
}
