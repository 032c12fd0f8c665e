//! What a profile says besides its entries: how fast copies are, and when it was made.

use std::time::Duration;

use crate::base::{Result, stats};
use crate::device::{Device, MemoryKind};
use crate::profile::Transfer;

/// Latency and rate of copies in both directions: the latency from copies of 4 bytes, the rate from the difference to
/// copies of 8 MiB. Medians of 9.
pub(super) fn transfer(device: &dyn Device) -> Result<Transfer> {
    const BIG: usize = 8 << 20;
    let clock = device.clock();
    let deadline = Duration::from_secs(30);
    let buffer = device.alloc(BIG as u64, MemoryKind::Device)?;
    let mut q = device.queue()?;
    let mut host = vec![0x5Au8; BIG];
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..9 {
        for (i, bytes) in [4, BIG].into_iter().enumerate() {
            let start = clock.now();
            q.write(&buffer, 0, &host[..bytes])?;
            q.finish(deadline)?;
            let written = clock.now();
            q.read(&buffer, 0, &mut host[..bytes])?;
            times[i].push(written - start);
            times[2 + i].push(clock.now() - written);
        }
    }
    let [up, up_big, down, down_big] = times.map(|t| stats::median(&t));
    // A copy that seems to take no time at all is as fast as the clock can tell.
    let rate = |small: f64, big: f64| (BIG - 4) as f64 / (big - small).max(1e-9);
    Ok(Transfer {
        device: device.info().uid.clone(),
        h2d_latency_s: up,
        h2d_bytes_per_s: rate(up, up_big),
        d2h_latency_s: down,
        d2h_bytes_per_s: rate(down, down_big),
    })
}

/// Seconds since 1970 as `2026-01-31T12:00:00Z` (days to civil date after H. Hinnant, *chrono-compatible low-level date
/// algorithms*).
pub(super) fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(utc(4_102_444_800), "2100-01-01T00:00:00Z");
    }
}
