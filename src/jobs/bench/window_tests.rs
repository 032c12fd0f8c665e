//! A card that lowers its clocks for a moment while a row is measured. The card is synthetic: its work is done by the CPU, and it
//! tells of itself in a tree like Linux's with the files of xe.

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use crate::base::sink::{Cancel, Collect};
    use crate::base::{DeviceClass, DeviceInfo, Env};
    use crate::device::Device;
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::device::probe::{CpuConfig, Rig, Select, open};
    use crate::device::spoilt::Spoilt;
    use crate::device::telemetry::{Telemetry, ask_tree};
    use crate::kernel::Isa;

    use crate::jobs::bench::BenchConfig;
    use crate::jobs::bench::point::{Bench, points};
    use crate::jobs::bench::tests::config;

    /// The flags of a row on the card, whose clocks are lowered when it is asked for the times in `hot` (counted from 1), and how
    /// often it was asked.
    fn flags(hot: std::ops::RangeInclusive<u32>) -> (Vec<String>, u32) {
        let tree = tempfile::tempdir().unwrap();
        let device = tree.path().join("sys/devices/pci0000:00/0000:03:00.0");
        let reason = device.join("tile0/gt0/freq0/throttle/reason_thermal");
        std::fs::create_dir_all(reason.parent().unwrap()).unwrap();
        std::fs::write(device.join("uevent"), "DRIVER=xe\nPCI_SLOT_NAME=0000:03:00.0\n").unwrap();
        let class = tree.path().join("sys/class/drm/card0");
        std::fs::create_dir_all(&class).unwrap();
        std::os::unix::fs::symlink(&device, class.join("device")).unwrap();
        let asked = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let (count, root) = (Arc::clone(&asked), tree.path().to_path_buf());
        let telemetry = Telemetry::new(move || {
            let now = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            std::fs::write(&reason, if hot.contains(&now) { "1\n" } else { "0\n" }).unwrap();
            ask_tree(Path::new(&root))
        });

        let cfg = BenchConfig { sizes: Some(vec![4096]), ..config("relu") };
        let config = CpuConfig { threads: 1, pin: Pin::Free };
        let cpu = open(&Select::Named(vec!["cpu".into()]), &Env::default(), config).unwrap().cpu;
        let inner = CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap();
        let (id, uid) = ("opencl:0".into(), "opencl/pci/0000:03:00.0".into());
        let info = DeviceInfo { id, uid, class: DeviceClass::Discrete, ..inner.info().clone() };
        let rig = Rig { devices: vec![Arc::new(Spoilt::posing(Arc::new(inner), info))], cpu, absent: Vec::new() };
        let point = &points(&cfg, &mut Collect::default()).unwrap()[0];
        let rows = Bench::new(&cfg, &rig).told_by(telemetry).point(point, &Cancel::new()).unwrap();
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(row.row.subject.status.name(), "ok", "{:?}", row.row);
        let flags = row.row.subject.flags.iter().filter(|f| f.contains("throttled") || f.contains("clocks")).cloned();
        (flags.collect(), asked.load(std::sync::atomic::Ordering::Relaxed))
    }

    #[test]
    fn a_slow_down_that_begins_and_ends_within_a_row_is_seen() {
        // The first look is before the row and the last one after it; samples are many more.
        let (seen, asked) = flags(3..=4);
        assert!(asked > 5, "{asked}");
        assert_eq!(seen, ["throttled: hw-thermal"]);
        assert_eq!(flags(1..=1).0, ["throttled: hw-thermal"], "before");
        assert_eq!(flags(0..=0).0, Vec::<String>::new(), "never");
    }
}
