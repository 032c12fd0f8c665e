//! Which of several subjects failed: the sampler's error does not say whose it is.

use std::sync::Arc;

use crate::base::{Clock, DeviceInfo, Result};
use crate::measure::{OpSubject, Subject};

/// A subject that remembers whether it failed.
pub(super) struct Watched<'s, 'a> {
    inner: &'s mut OpSubject<'a>,
    failed: bool,
}

impl<'s, 'a> Watched<'s, 'a> {
    pub(super) fn new(inner: &'s mut OpSubject<'a>) -> Self {
        Watched { inner, failed: false }
    }

    pub(super) fn failed(&self) -> bool {
        self.failed
    }

    fn seen(&mut self, result: Result<()>) -> Result<()> {
        self.failed |= result.is_err();
        result
    }
}

impl Subject for Watched<'_, '_> {
    fn run(&mut self, calls: u64) -> Result<()> {
        let result = self.inner.run(calls);
        self.seen(result)
    }
    fn share(&self) -> u64 {
        self.inner.share()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
    fn traced(&self) -> Option<f64> {
        self.inner.traced()
    }
    fn told(&self, remark: &'static str, calls: u64, begin: f64, seconds: f64) {
        self.inner.told(remark, calls, begin, seconds);
    }
    fn before(&mut self) -> Result<()> {
        let result = self.inner.before();
        self.seen(result)
    }
    fn one_call(&self) -> bool {
        self.inner.one_call()
    }
    fn device(&self) -> Option<&DeviceInfo> {
        self.inner.device()
    }
    fn take_back(&mut self) -> Result<()> {
        let result = self.inner.take_back();
        self.seen(result)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::Arc;

    use crate::base::record::{BenchRecord, Record, Status};
    use crate::base::sink::{Cancel, Collect};
    use crate::base::{Code, DeviceClass, DeviceInfo, Env};
    use crate::device::Device;
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
    use crate::device::probe::{CpuConfig, Rig, Select, open};
    use crate::device::spoilt::Spoilt;
    use crate::kernel::Isa;
    use crate::measure::Cache;

    use crate::jobs::bench::BenchConfig;
    use crate::jobs::bench::tests::config;

    /// The rows of two points on the CPU, a sound device and one with this fault.
    fn rows(cache: Cache, on: On, when: When, fault: Fault) -> Vec<BenchRecord> {
        let cfg = BenchConfig { sizes: Some(vec![4096, 8192]), cache, ..config("relu") };
        let config = CpuConfig { threads: 1, pin: Pin::Free };
        let cpu = open(&Select::Named(vec!["cpu".into()]), &Env::default(), config).unwrap().cpu;
        let posing = |number: u32| -> Arc<dyn Device> {
            let inner = CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap();
            let info = DeviceInfo {
                id: format!("opencl:{number}"),
                uid: format!("opencl/pci/0000:0{number}:00.0"),
                class: DeviceClass::Discrete,
                ..inner.info().clone()
            };
            Arc::new(Spoilt::posing(Arc::new(inner), info))
        };
        let plan = FaultPlan { text: "planted".into(), rules: vec![Rule { on, when, fault }] };
        let faulty: Arc<dyn Device> = Arc::new(Faulty::new(posing(0), plan));
        let rig = Rig { devices: vec![Arc::clone(&cpu), faulty, posing(1)], cpu, absent: Vec::new() };
        let mut sink = Collect::default();
        let summary = crate::jobs::bench::run(&cfg, &rig, &mut sink, &Cancel::new()).unwrap();
        assert!(summary.failed > 0 && summary.exit_code() == 1 && !summary.cancelled, "{summary:?}");
        let rows = sink.records.into_iter().map(|r| match r {
            Record::Bench(b) => *b,
            other => panic!("{other:?}"),
        });
        rows.collect()
    }

    #[test]
    fn a_device_that_fails_between_samples_loses_its_own_rows_alone() {
        // Far beyond the calls that try a device alone, and within the first point's samples.
        for fault in [Fault::Fail(Code::LaunchTimeout), Fault::Lose] {
            let rows = rows(Cache::Hot, On::Launch, When::From(12), fault);
            let seen: Vec<_> = rows.iter().map(|r| (r.subject.device.as_str(), r.subject.status)).collect();
            let point = [("cpu", Status::Ok), ("opencl:0", Status::Failed), ("opencl:1", Status::Ok)];
            assert_eq!(seen, [point, point].concat());
            assert!(rows[1].subject.reason.contains("planted") && rows[1].subject.error.is_some(), "{:?}", rows[1]);
            assert!(rows[2].speedup_vs_cpu.is_some() && rows[2].samples > 0, "{:?}", rows[2]);
        }
    }

    #[test]
    fn one_launch_that_fails_with_cold_caches_costs_one_row() {
        let rows = rows(Cache::Cold, On::Launch, When::Nth(6), Fault::Fail(Code::LaunchFailed));
        let failed: Vec<_> = rows.iter().filter(|r| r.subject.status != Status::Ok).collect();
        assert!(failed.len() == 1 && failed[0].subject.device == "opencl:0" && rows.len() == 6, "{failed:?}");
    }
}
