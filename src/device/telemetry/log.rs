//! The kernel's log, where it may be read.

use crate::base::os;
use crate::base::telemetry::{KernelEvent, NotTold};

use super::{Source, Told};

/// The log of this system.
pub(super) struct Kernel;

impl Source for Kernel {
    fn ask(&mut self, told: &mut Told) {
        match os::kernel_log() {
            Ok(text) => told.host.events = Some(parse(&text)),
            Err(why) => told.host.not_told.push(NotTold { what: "kernel log".into(), why }),
        }
    }
}

/// Texts of other drivers when a GPU hung or was reset (amdgpu, i915 and xe of Linux).
const RESETS: [&str; 6] =
    ["GPU reset", "GPU HANG", "GPU recovery failed", "Engine reset", "ring gfx timeout", "ring comp_"];

/// Lines about GPUs: NVIDIA's `NVRM: Xid (PCI:0000:3b:00): 79, ...` and the resets of other drivers.
pub fn parse(text: &str) -> Vec<KernelEvent> {
    text.lines().filter_map(event).collect()
}

fn event(line: &str) -> Option<KernelEvent> {
    if let Some((_, rest)) = line.split_once("NVRM: Xid (PCI:") {
        let (pci, rest) = rest.split_once(')')?;
        let number: String = rest.trim_start_matches([':', ' ']).chars().take_while(char::is_ascii_digit).collect();
        // NVIDIA leaves the function out, which is 0.
        let pci = if pci.contains('.') { pci.to_string() } else { format!("{pci}.0") };
        return Some(KernelEvent { pci: Some(pci.to_ascii_lowercase()), xid: number.parse().ok(), text: shown(line) });
    }
    let driver = ["amdgpu", "i915", "xe "].iter().any(|d| line.contains(d));
    if !driver || !RESETS.iter().any(|r| line.contains(r)) {
        return None;
    }
    let address = line
        .split([' ', '[', ']'])
        .map(|w| w.trim_end_matches(':'))
        .find(|w| w.len() == 12 && w.as_bytes()[4] == b':' && w.as_bytes()[7] == b':' && w.as_bytes()[10] == b'.');
    Some(KernelEvent { pci: address.map(str::to_ascii_lowercase), xid: None, text: shown(line) })
}

/// What of a line is worth showing: `/dev/kmsg` puts level, number and time before a semicolon.
fn shown(line: &str) -> String {
    let said = line.split_once(';').filter(|(head, _)| head.bytes().all(|b| b.is_ascii_digit() || b",-".contains(&b)));
    said.map_or(line, |(_, rest)| rest).chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_gpus_are_found() {
        // The first form is that of NVIDIA's document "XID Errors"; the others are texts of Linux's drivers (synthetic).
        let log = "6,1,2,-;NVRM: Xid (PCI:0000:3B:00): 79, pid=1, GPU has fallen off the bus.\n\
                   3,2,2,-;amdgpu 0000:03:00.0: amdgpu: GPU reset begin!\n\
                   3,3,2,-;i915 0000:00:02.0: [drm] GPU HANG: ecode 9:1:85dffffb\n\
                   6,4,2,-;usb 1-1: reset high-speed USB device\n\
                   6,5,2,-;NVRM: Xid (PCI:";
        let events = parse(log);
        assert_eq!(events.len(), 3, "{events:?}");
        assert_eq!((events[0].pci.as_deref(), events[0].xid), (Some("0000:3b:00.0"), Some(79)));
        assert!(events[0].text.starts_with("NVRM: Xid"), "{:?}", events[0]);
        assert_eq!((events[1].pci.as_deref(), events[1].xid), (Some("0000:03:00.0"), None));
        assert_eq!(events[2].pci.as_deref(), Some("0000:00:02.0"));
    }
}
