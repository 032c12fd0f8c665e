//! The machines that come with the program, and what their names mean.

use std::sync::Arc;

use crate::base::{Code, Error, Result};
use crate::device::Device;

use super::{Compute, Spec, open_spec};

const PRESETS: [(&str, &str); 6] = [
    ("h200", include_str!("h200.toml")),
    ("laptop", include_str!("laptop.toml")),
    ("textbook", include_str!("textbook.toml")),
    ("steps", include_str!("steps.toml")),
    ("cliffs", include_str!("cliffs.toml")),
    ("bands", include_str!("bands.toml")),
];

/// Names of the machines that come with the program; `sim:NAME` is the device's id, `sim:NAME:CARD` that of one card of several.
pub fn presets() -> &'static [&'static str] {
    static NAMES: [&str; PRESETS.len()] = {
        let mut names = [""; PRESETS.len()];
        let mut i = 0;
        while i < PRESETS.len() {
            names[i] = PRESETS[i].0;
            i += 1;
        }
        names
    };
    &NAMES
}

/// The description of a preset. Errors: `DeviceMissing`, listing the presets.
pub fn spec(preset: &str) -> Result<Spec> {
    match PRESETS.iter().find(|(name, _)| *name == preset) {
        Some((name, text)) => Spec::parse(name, text),
        None => Err(Error::new(
            Code::DeviceMissing,
            format!("no simulated machine '{preset}'; there are: sim:{}", presets().join(" sim:")),
        )),
    }
}

/// Opens a preset: its CPU (id `cpu`) and its device (id `sim:PRESET`) on one virtual clock that starts at zero. With
/// the suffix `:timing` nothing is computed. A number after that (`h200:3`) is the card of that number in a machine with several of
/// them, each on a clock of its own and with noise of its own.
pub fn open(preset: &str) -> Result<(Arc<dyn Device>, Arc<dyn Device>)> {
    open_process(preset, 0)
}

/// The same machine as another process meets it: with that process's own part of the noise.
pub fn open_process(preset: &str, process: u64) -> Result<(Arc<dyn Device>, Arc<dyn Device>)> {
    let numbered = preset.rsplit_once(':').and_then(|(rest, n)| Some((rest, n.parse::<u16>().ok()?)));
    let (rest, card) = numbered.map_or((preset, None), |(rest, n)| (rest, Some(n)));
    let (name, compute) = rest.strip_suffix(":timing").map_or((rest, Compute::Real), |name| (name, Compute::None));
    let spec = spec(name)?;
    let seed = spec.seed.wrapping_add(u64::from(card.unwrap_or(0)) << 32);
    open_spec(Spec { process, card, seed, ..spec }, compute)
}
