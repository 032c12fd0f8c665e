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
        let command = self.command_for_a_first_look(source)?;
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
    /// The same from what can be seen without opening a driver: the nodes that drivers of GPUs put into `/dev`. Only of a
    /// profile that looked at no device at all, for a node does not say which device it is.
    pub fn cpu_only_by_nodes(&self, source: &Source, nodes: &[String]) -> Option<String> {
        let command = self.command_for_a_first_look(source)?;
        if nodes.is_empty() || !self.devices.is_empty() {
            return None;
        }
        let nodes: Vec<String> = nodes.iter().map(|n| format!("/dev/{n}")).collect();
        let text = format!(
            "everything stays on the CPU, and nothing was ever measured on the GPU that {} may be; run `{command}`",
            nodes.join(", ")
        );
        Some(printable(&text).into_owned())
    }

    /// The command that would look at the machine's GPUs, for a profile that uses none and was not asked for by name.
    fn command_for_a_first_look(&self, source: &Source) -> Option<String> {
        match (self.kind, source) {
            _ if self.may_use_gpu() => None,
            (Kind::Preset, Source::Embedded) => Some("gpuctl calibrate -o ~/.config/gpuctl/profile.toml".into()),
            (Kind::Calibrated, Source::File(path)) => Some(format!("gpuctl calibrate -o {}", path.display())),
            (Kind::Calibrated, _) => Some("gpuctl calibrate > thresholds.toml".into()),
            (Kind::Preset, _) => None,
        }
    }
}
