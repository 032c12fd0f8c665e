//! Copies that keep a card's link busy while it is read.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::base::Result;
use crate::device::{DEADLINE, Device, MemoryKind};

/// Bytes of a copy: long enough for a link to reach its full rate, short enough to stop at once.
const COPY: usize = 32 << 20;
/// Time after which a link that was asleep has reached its full rate.
const AWAKE: Duration = Duration::from_millis(300);
/// Longest wait for a device's first copy.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Runs `look` while copies to all these devices go on. Gives also the numbers of the devices on which they did: the others
/// could not be opened, or took too long.
pub fn under_load<T>(
    devices: Vec<Box<dyn FnOnce() -> Result<Arc<dyn Device>> + Send>>,
    look: impl FnOnce() -> T,
) -> (T, Vec<usize>) {
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let count = devices.len();
    // Not joined: a driver that hangs would keep us.
    for (number, open) in devices.into_iter().enumerate() {
        let (stop, tell) = (Arc::clone(&stop), tell.clone());
        std::thread::spawn(move || {
            let first = || tell.send(number).unwrap_or_default();
            // Whoever fails does not send, which says all.
            let _ = copies(open, &stop, first);
        });
    }
    drop(tell);
    let mut loaded = Vec::new();
    let clock = std::time::Instant::now();
    while loaded.len() < count {
        match told.recv_timeout(PATIENCE.saturating_sub(clock.elapsed())) {
            Ok(number) => loaded.push(number),
            Err(_) => break,
        }
    }
    if !loaded.is_empty() {
        std::thread::sleep(AWAKE);
    }
    let seen = look();
    stop.store(true, Relaxed);
    loaded.sort_unstable();
    (seen, loaded)
}

/// Copies to a device until it is stopped; `first` is called after the first copy.
fn copies(open: impl FnOnce() -> Result<Arc<dyn Device>>, stop: &AtomicBool, first: impl FnOnce()) -> Result<()> {
    let device = open()?;
    let data = vec![0x5A; COPY];
    let buffer = device.alloc(COPY as u64, MemoryKind::Device)?;
    let mut queue = device.queue()?;
    let mut first = Some(first);
    while !stop.load(Relaxed) {
        queue.write(&buffer, 0, &data)?;
        queue.finish(DEADLINE)?;
        if let Some(first) = first.take() {
            first();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Code, Error};
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::kernel::Isa;

    #[test]
    fn copies_go_on_while_one_looks() {
        let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap());
        let own = Arc::clone(&cpu);
        let broken = || Err(Error::new(Code::DeviceLost, "gone"));
        let ledger = Arc::clone(cpu.ledger());
        let (bytes, loaded) = under_load(vec![Box::new(broken), Box::new(move || Ok(own))], || ledger.state().bytes);
        assert_eq!((bytes >= COPY as u64, loaded), (true, vec![1]));
        assert_eq!(under_load(Vec::new(), || 7), (7, vec![]));
    }
}
