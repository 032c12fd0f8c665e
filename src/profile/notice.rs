//! A profile that never looked at the machine's GPUs.

use crate::base::text::printable;
use crate::base::{DeviceClass, DeviceInfo};

use super::{Kind, Profile, Source};

impl Profile {
    /// What to tell, once, where the profile keeps everything on the CPU although GPUs are here that nobody measured;
    /// `None` where there is nothing to tell. `here` are the devices that were found.
    ///
    /// Meant are a profile calibrated where no GPU was seen, and the always-cpu that is used when there is no profile at
    /// all. A GPU that was measured and never won, or a preset that was asked for, is an answer and needs no notice.
    pub fn cpu_only(&self, source: &Source, here: &[DeviceInfo]) -> Option<String> {
        let command = match (self.kind, source) {
            _ if self.may_use_gpu() => return None,
            (Kind::Preset, Source::Embedded) => "gpuctl calibrate -o ~/.config/gpuctl/profile.toml".into(),
            (Kind::Calibrated, Source::File(path)) => format!("gpuctl calibrate -o {}", path.display()),
            (Kind::Calibrated, _) => "gpuctl calibrate > thresholds.toml".to_string(),
            (Kind::Preset, _) => return None,
        };
        let real = |d: &&DeviceInfo| {
            !matches!(d.class, DeviceClass::Cpu | DeviceClass::Software | DeviceClass::Simulated)
                && !self.devices.iter().any(|m| m.uid == d.uid)
        };
        let names: Vec<String> = here.iter().filter(real).map(|d| format!("{} ({})", d.id, d.name)).collect();
        if names.is_empty() {
            return None;
        }
        let text = format!(
            "everything stays on the CPU, because nothing was ever measured on {}; run `{command}`",
            names.join(", ")
        );
        Some(printable(&text).into_owned())
    }
}
