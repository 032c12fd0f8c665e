//! When a row is called suspect because its kernel takes longer than the call that it is a part of.

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use crate::base::record::BenchRecord;
    use crate::base::sink::{Cancel, Collect};
    use crate::base::{DeviceClass, DeviceInfo, Env};
    use crate::device::Device;
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
    use crate::device::probe::{CpuConfig, Rig, Select, open};
    use crate::device::spoilt::Spoilt;
    use crate::kernel::Isa;

    use crate::jobs::bench::BenchConfig;
    use crate::jobs::bench::point::{Bench, points};
    use crate::jobs::bench::tests::config;

    fn doing(inner: Arc<dyn Device>, on: On, deed: impl Fn() + Send + Sync + 'static) -> Arc<dyn Device> {
        let plan = FaultPlan { text: "do".into(), rules: vec![Rule { on, when: When::From(1), fault: Fault::Do }] };
        Arc::new(Faulty::new(inner, plan).doing(deed))
    }

    /// The row of a device on which a launch takes 3 ms more if it follows a call of the first kind, and none of the second since.
    fn row(slow_after: On, but_not: Option<On>) -> BenchRecord {
        let cfg = BenchConfig { sizes: Some(vec![4096]), ..config("relu") };
        let config = CpuConfig { threads: 1, pin: Pin::Free };
        let cpu = open(&Select::Named(vec!["cpu".into()]), &Env::default(), config).unwrap().cpu;
        let inner = CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap();
        let info = DeviceInfo {
            id: "opencl:0".into(),
            uid: "opencl/pci/0000:03:00.0".into(),
            class: DeviceClass::Discrete,
            ..inner.info().clone()
        };
        let slow = Arc::new(AtomicBool::new(false));
        let next = Arc::clone(&slow);
        let mut device = doing(Arc::new(Spoilt::posing(Arc::new(inner), info)), On::Launch, move || {
            if next.swap(false, Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        for (on, is_slow) in [(Some(slow_after), true), (but_not, false)] {
            let Some(on) = on else { continue };
            let slow = Arc::clone(&slow);
            device = doing(device, on, move || slow.store(is_slow, Ordering::SeqCst));
        }
        let rig = Rig { devices: vec![device], cpu, absent: Vec::new() };
        let point = &points(&cfg, &mut Collect::default()).unwrap()[0];
        let rows = Bench::new(&cfg, &rig).point(point, &Cancel::new()).unwrap();
        let [measured] = &rows[..] else { panic!("{rows:?}") };
        measured.row.clone()
    }

    #[test]
    fn a_kernel_that_is_slow_after_a_copy_alone_is_no_contradiction() {
        let row = row(On::Write, None);
        assert!(row.phases_s.kernel.unwrap() > 2e-3 && row.median_s.unwrap() < 1e-3, "{row:?}");
        assert_eq!(row.subject.status.name(), "ok", "{row:?}");
    }

    #[test]
    fn a_call_that_is_shorter_than_its_own_kernel_is_suspect() {
        // In a sample the mark before a launch is that of the last wait.
        let row = row(On::Mark, Some(On::Wait));
        assert!(row.median_s.unwrap() < 1e-3, "{row:?}");
        assert_eq!(row.subject.status.name(), "suspect", "{row:?}");
        assert!(row.subject.reason.contains("exceeds the whole call"), "{}", row.subject.reason);
    }
}
