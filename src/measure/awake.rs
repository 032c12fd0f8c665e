//! Processors that do not fall idle while something is timed.
//!
//! A virtual machine gives a processor that idles back to its host, and waking it takes as long as the host pleases. A thread that
//! spins on each of them, at the priority of idling, runs where nothing else wants to and keeps that out of what is timed: on some
//! machines most of the scatter, on others a part of what a program's calls really cost (docs/measuring.md). So it is done on
//! request alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use crate::base::{Code, Error, Result, os};

/// Keeps processors awake until it is dropped.
#[derive(Debug)]
pub struct Awake(Arc<AtomicBool>);

impl Awake {
    /// Keeps `cpus`, those that the process may use, awake. `quota`: processors' worth of time that the process has.
    ///
    /// Errors: `BadArgument` where it cannot be done, or would use the quota up.
    pub fn start(cpus: &[usize], quota: Option<f64>) -> Result<Self> {
        let cannot = |why: &str| {
            let why = format!("processors cannot be kept awake here: {why}; GPUCTL_AWAKE=0 measures without");
            Err(Error::new(Code::BadArgument, why))
        };
        if let Some(q) = quota.filter(|q| *q < cpus.len() as f64) {
            return cannot(&format!("it would use up the quota of {q:.2} processors of {}", cpus.len()));
        }
        let awake = Awake(Arc::new(AtomicBool::new(false)));
        match !cpus.is_empty() && cpus.iter().all(|cpu| awake.spin(*cpu)) {
            true => Ok(awake),
            false => cannot("the system gives no thread the priority of idling on one processor"),
        }
    }

    /// Starts a thread that spins on a processor. False if it cannot be had, or not at the lowest priority: nothing spins then.
    fn spin(&self, cpu: usize) -> bool {
        let (say, told) = channel();
        let ends = Arc::clone(&self.0);
        let spins = move || {
            let can = os::pin_current_thread(cpu) && os::idle_priority();
            let _ = say.send(can);
            let mut count = 0u64;
            while can && !ends.load(Ordering::Relaxed) {
                // No hint that this is a waiting loop: a hypervisor takes such a processor away, too.
                for _ in 0..10_000 {
                    count = std::hint::black_box(count.wrapping_add(1));
                }
            }
        };
        std::thread::Builder::new().name("awake".into()).spawn(spins).is_ok() && told.recv().unwrap_or(false)
    }
}

impl Drop for Awake {
    /// Does not wait for the threads: one that finds no time to run does not end before it has some.
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_of_the_lowest_priority_spins_on_each_processor_until_it_is_dropped() {
        // The processors of threads with that priority (proc_pid_stat(5)).
        let spinning = || {
            let mut on: Vec<usize> = Vec::new();
            for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                let Some(fields) = stat.strip_suffix('\n').and_then(|s| s.split_once("(awake) ")) else { continue };
                let fields: Vec<&str> = fields.1.split(' ').collect();
                if fields[38].parse() == Ok(libc::SCHED_IDLE) {
                    on.push(fields[36].parse().unwrap());
                }
            }
            on.sort_unstable();
            on
        };
        let cpus = os::allowed_cpus();
        let ends = || {
            let begin = std::time::Instant::now();
            while !spinning().is_empty() {
                assert!(begin.elapsed().as_secs() < 60, "they go on");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        };
        assert_eq!(spinning(), [0; 0]);
        let awake = Awake::start(&cpus, Some(cpus.len() as f64)).unwrap();
        assert_eq!(spinning(), cpus);
        drop(awake);
        ends();
        // A processor that is not there cannot be kept awake, and then none is.
        let e = Awake::start(&[cpus[0], usize::MAX], None).unwrap_err();
        assert!(e.code() == Code::BadArgument && e.to_string().contains("priority"), "{e}");
        ends();
        let e = Awake::start(&cpus, Some(0.5)).unwrap_err();
        assert!(e.code() == Code::BadArgument && e.to_string().contains("quota of 0.50"), "{e}");
        assert_eq!(spinning(), [0; 0]);
    }
}
