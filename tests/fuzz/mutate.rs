//! Sound profiles, and what becomes of them in careless or hostile hands.

use std::cell::Cell;

use gpuctl::base::record::CalibratePoint;
use gpuctl::base::rng::{Philox, fnv1a64};
use gpuctl::profile::model::{Curve, Side};
use gpuctl::profile::{Entry, Host, Kind, Profile, ProfileDevice, Rule, State, Transfer, Verdict, with_margin};

/// Random numbers of one case.
pub(crate) struct Dice {
    rng: Philox,
    case: u64,
    drawn: Cell<u64>,
}

impl Dice {
    pub(crate) fn new(seed: u64, case: u64) -> Self {
        Dice { rng: Philox::new(seed), case, drawn: Cell::new(0) }
    }
    /// From 0 to n - 1.
    pub(crate) fn below(&self, n: usize) -> usize {
        self.drawn.set(self.drawn.get() + 1);
        (self.rng.u64(self.case, self.drawn.get()) % n.max(1) as u64) as usize
    }
    pub(crate) fn of<T: Copy>(&self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
    fn log(&self, low: f64, high: f64) -> f64 {
        let t = self.below(1 << 20) as f64 / f64::from(1 << 20);
        (low.ln() + t * (high / low).ln()).exp()
    }
}

/// A sound profile as calibrate could have written it.
pub(crate) fn profile(d: &Dice) -> Profile {
    let mut p = Profile::new(Kind::Calibrated, d.of(&["test", "with \"quotes\"", "[end]\nin a name", "µ"]));
    p.created = "2026-01-31T12:00:00Z".into();
    p.margin = d.of(&[1.0, 1.1, 1.5]);
    p.rule = d.of(&[Rule::Threshold, Rule::Curve]);
    p.partial = d.below(4) == 0;
    p.host = Some(Host {
        cpu: "CPU".into(),
        isa: "avx2".into(),
        blas: String::new(),
        cpus: 2,
        memory_bytes: 1 << 34,
        os: "Linux".into(),
        awake: true,
        disturbed: d.of(&[None, Some(0.125)]),
    });
    for n in 0..1 + d.below(2) {
        p.devices.push(ProfileDevice {
            id: format!("opencl:{n}"),
            uid: format!("pci:{n}"),
            fingerprint: format!("opencl | GPU | 1.{n} | OpenCL 3.0"),
            backend: "opencl".into(),
            name: "GPU".into(),
            driver: format!("1.{n}"),
        });
        p.transfers.push(Transfer {
            device: format!("pci:{n}"),
            h2d_latency_s: 1e-5,
            h2d_bytes_per_s: 1e10,
            d2h_latency_s: 1.5e-5,
            d2h_bytes_per_s: 9e9,
        });
        p.states.push(State {
            device: format!("pci:{n}"),
            residency: "always".into(),
            threads: 2,
            looks: 2000,
            cpu_s: 1e-5,
            device_s: 5e-5,
            stated_cpu_s: 1.1e-5,
            stated_device_s: 4e-5,
        });
    }
    for _ in 0..1 + d.below(4) {
        let e = entry(d, &p);
        let same = |o: &Entry| (&o.op, &o.device, &o.residency) == (&e.op, &e.device, &e.residency);
        if !p.entries.iter().any(same) {
            p.entries.push(e);
        }
    }
    p
}

fn entry(d: &Dice, p: &Profile) -> Entry {
    let crossing = d.log(20.0, 1e6) as u64;
    let point = |size: u64| {
        let ratio = d.log(0.1, 10.0);
        let cpu_s = d.log(1e-6, 1.0);
        CalibratePoint { size, cpu_s, gpu_s: cpu_s / ratio, ratio_ci: [ratio * 0.9, ratio * 1.1], pairs: 7 }
    };
    let verdict = d.of(&[Verdict::Crossing, Verdict::Crossing, Verdict::Always, Verdict::Never, Verdict::Unmeasured]);
    let (unit, op) = d.of(&[("elements", "add"), ("dim", "gemm"), ("elements", "exp"), ("input_elements", "conv2d")]);
    let mut e = Entry {
        op: op.into(),
        dtype: "f32".into(),
        family: "all".into(),
        device: p.devices[d.below(p.devices.len())].uid.clone(),
        residency: d.of(&["always", "resident"]).into(),
        threads: 2,
        cpu_variant: "auto".into(),
        verdict,
        unit: unit.into(),
        n: 3,
        verify: "ok".into(),
        kernel: "flat".into(),
        reason: "synthetic".into(),
        points: vec![point(10), point(2 * crossing), point(4_000_000)],
        curve: (d.below(3) == 0).then(|| curve(d)),
        ..Entry::default()
    };
    match verdict {
        Verdict::Crossing => {
            e.crossing = Some(crossing);
            e.ci = Some([crossing - crossing / 20, crossing + crossing / 20]);
            e.stake = (d.below(2) == 0).then_some(1.05);
            e.threshold = Some(with_margin(crossing, p.margin));
        }
        Verdict::Always => (e.crossing, e.threshold) = (Some(10), Some(10)),
        _ => {}
    }
    if d.below(5) == 0 { e.without_evidence() } else { e }
}

fn curve(d: &Dice) -> Curve {
    let side = |fixed_s: f64| Side {
        fixed_s,
        flop_s: d.log(1e-12, 1e-9),
        byte_s: d.log(1e-12, 1e-9),
        knots: [0.0, d.log(0.5, 4.0)],
        factors: (0..d.below(5)).map(|_| d.log(0.5, 2.0)).collect(),
        ..Side::default()
    };
    Curve { span: [[1.0, 1e12]; 4], change: None, cpu: side(1e-7), device: side(1e-5) }
}

/// Signs a text whose body was changed, as a forger would: the digest alone.
pub(crate) fn sign(text: &str) -> String {
    let body = &text[..text.rfind("digest = ").unwrap_or(text.len())];
    format!("{body}digest = \"{:016x}\"\n", fnv1a64(body.as_bytes()))
}

const PIECES: &[&str] = &[
    "-1",
    "0",
    "nan",
    "-inf",
    "1e999",
    "99999999999999999999",
    "9223372036854775807",
    "\"",
    "'",
    "\"\"\"",
    "[",
    "]",
    "{}",
    "{",
    "\n",
    "\r\n",
    "\r",
    "= ",
    "any",
    "\u{0}",
    "\u{1b}[2J",
    "\\u001b",
    "\u{feff}",
    "\u{202e}",
    "#",
    ".",
    ",",
    "[[entry]]\n",
    "[end]\n",
    "digest = \"0000000000000000\"\n",
    "true",
    "1979-05-27T07:32:00Z",
    "seal = \"0000000000000000\"\n",
    "edited = true\n",
    "threshold = 0\n",
    "verdict = \"always\"\n",
    "kind = \"preset\"\n",
    "schema = 1\n",
    "µ",
];

fn boundary(text: &str, mut at: usize) -> usize {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// A change to the text, which knows lines, numbers and strings.
pub(crate) fn in_text(d: &Dice, text: &str, other: &str) -> String {
    let at = boundary(text, d.below(text.len() + 1));
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    if lines.is_empty() {
        return d.of(PIECES).into();
    }
    let line = d.below(lines.len());
    let joined = |change: &dyn Fn(&mut Vec<String>)| {
        let mut lines: Vec<String> = lines.iter().map(|l| l.to_string()).collect();
        change(&mut lines);
        lines.concat()
    };
    match d.below(11) {
        0 => {
            let mut bytes = text.as_bytes().to_vec();
            if let Some(b) = bytes.get_mut(at) {
                *b ^= 1 << d.below(7);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
        1 => format!("{}{}{}", &text[..at], d.of(PIECES), &text[at..]),
        2 => {
            let end = boundary(text, at + 1 + d.below(40));
            format!("{}{}", &text[..at], &text[end.max(at)..])
        }
        3 => joined(&|l| {
            l.remove(line);
        }),
        4 => joined(&|l| l.insert(line, lines[line].to_string())),
        5 => {
            let to = d.below(lines.len());
            joined(&|l| l.swap(line, to))
        }
        6 => {
            let from = boundary(other, d.below(other.len() + 1));
            format!("{}{}", &text[..at], &other[from..])
        }
        // The value of a line.
        7 | 8 => {
            let piece = d.of(PIECES);
            let changed = lines[line].split_once(" = ").map(|(key, _)| format!("{key} = {piece}\n"));
            joined(&|l| {
                if let Some(c) = &changed {
                    l[line] = c.clone();
                }
            })
        }
        // One digit of a number.
        9 => {
            let digits: Vec<usize> =
                text.bytes().enumerate().filter(|(_, b)| b.is_ascii_digit()).map(|(i, _)| i).collect();
            let mut bytes = text.as_bytes().to_vec();
            if let Some(at) = digits.get(d.below(digits.len())) {
                bytes[*at] = b'0' + d.below(10) as u8;
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
        _ => {
            let blocks: Vec<&str> = text.split("[[entry]]").collect();
            let (from, to) = (d.below(blocks.len()), d.below(blocks.len()));
            let mut changed = blocks.clone();
            changed.insert(to, blocks[from]);
            changed.join("[[entry]]")
        }
    }
}

fn hostile(d: &Dice) -> toml::Value {
    use toml::Value as V;
    match d.below(12) {
        0 => V::Integer(d.of(&[0, 1, -1, i64::MAX, i64::MIN, 77])),
        1 => V::Float(d.of(&[0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5e-324, 1e308])),
        2 => V::String(
            d.of(&["", "any", "always", "crossing", "ok", "pci:1", "f64", "\u{1b}[2J", "a\nb", "\u{202e}"]).into(),
        ),
        3 => V::String("x".repeat(d.of(&[257, 5000]))),
        4 => V::Boolean(d.below(2) == 0),
        5 => V::Array(vec![]),
        6 => V::Array(vec![V::Integer(9), V::Integer(3)]),
        7 => V::Array(vec![V::Array(vec![V::Integer(1), V::Float(f64::NAN)])]),
        8 => V::Table(toml::Table::new()),
        9 => (0..60).fold(V::Integer(1), |v, _| V::Array(vec![v])),
        10 => V::Integer(d.log(1.0, 1e18) as i64),
        _ => V::Float(d.log(1e-12, 1e12)),
    }
}

/// One change to the values of one entry; gives the text, not signed, and the entry's position.
pub(crate) fn in_entry(d: &Dice, text: &str) -> Option<(String, usize)> {
    let mut table: toml::Table = text.parse().ok()?;
    let end = table.remove("end")?;
    let entries = table.get_mut("entry")?.as_array_mut()?;
    if entries.is_empty() {
        return None;
    }
    let at = d.below(entries.len());
    let other = entries[d.below(entries.len())].as_table()?.clone();
    let entry = entries[at].as_table_mut()?;
    let keys: Vec<String> = entry.keys().cloned().collect();
    let key = keys.get(d.below(keys.len()))?;
    match d.below(6) {
        0 => {
            entry.remove(key);
        }
        1 => {
            let value = entry.remove(key)?;
            entry.insert(d.of(&["threshold", "crossing", "seal", "unknown", "verify", "n"]).into(), value);
        }
        2 => {
            entry.insert(key.clone(), other.get(key)?.clone());
        }
        3 => {
            entry.insert(
                d.of(&["threshold", "verdict", "edited", "ci", "stake", "unknown", "points"]).into(),
                hostile(d),
            );
        }
        _ => {
            entry.insert(key.clone(), hostile(d));
        }
    }
    let body = toml::to_string(&table).ok()?;
    let end = toml::to_string(&end).ok()?;
    let digest = end.lines().find(|l| l.starts_with("digest"))?.to_string();
    let rest: Vec<&str> = end.lines().filter(|l| !l.starts_with("digest")).collect();
    Some((format!("{body}\n[end]\n{}\n{digest}\n", rest.join("\n")), at))
}
