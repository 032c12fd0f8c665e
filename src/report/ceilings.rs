//! The table of `devices --measure`.

use crate::base::record::{CeilingRecord, NoiseRecord, Status};
use crate::base::{Record, units};

use super::text;

/// What each device reaches, and what its sampling makes of equal things.
pub fn table(records: &[Record], width: Option<u16>) -> String {
    let mut t = text::table(&["device", "what", "of", "value", "95 % interval", "of theoretical", "remarks"]);
    if let Some(w) = width {
        t.set_width(w);
    }
    let mut rest = String::new();
    for record in records {
        match record {
            Record::Ceiling(c) => {
                t.add_row(cells(c));
            }
            Record::Noise(n) => rest.push_str(&noise(n)),
            _ => {}
        }
    }
    format!("{t}\n{rest}")
}

fn cells(c: &CeilingRecord) -> [String; 7] {
    let value = |v: f64| match c.unit.as_str() {
        "s" => units::seconds(v),
        unit => format!("{} {unit}", units::three(v)),
    };
    let of = match (c.dtype, c.memory.as_str()) {
        (Some(dtype), _) => dtype.name().to_string(),
        (None, "") if c.unit == "s" => "an empty kernel".into(),
        (None, "") => units::bytes(c.bytes),
        (None, memory) => format!("{} {memory}", units::bytes(c.bytes)),
    };
    let remarks = match c.status {
        Status::Ok => c.variant.clone(),
        other => format!("{}: {}", other.name(), c.reason),
    };
    [
        c.device.clone(),
        c.what.clone(),
        of,
        c.value.map_or("-".into(), value),
        c.ci.map_or("-".into(), |ci| format!("{} .. {}", value(ci[0]), value(ci[1]))),
        c.value.zip(c.theoretical).map_or("-".into(), |(v, t)| format!("{:.0} %", 100.0 * v / t)),
        remarks,
    ]
}

fn noise(n: &NoiseRecord) -> String {
    let mut line = format!(
        "{}: two equal things differ by up to {:.1} % here ({:.3} times, 95 % interval {:.3} .. {:.3}); {:.0} times the work takes \
         {:.2} times as long ({:.2} .. {:.2})\n",
        n.device,
        100.0 * n.floor,
        n.null_ratio,
        n.null_ci[0],
        n.null_ci[1],
        n.known,
        n.known_ratio,
        n.known_ci[0],
        n.known_ci[1]
    );
    if !n.sound {
        line.push_str(&format!("{}: NOT SOUND: {}\n", n.device, n.reason));
    }
    line
}
