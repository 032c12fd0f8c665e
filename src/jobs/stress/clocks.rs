//! Whether time passed as a soak believes it did: a machine that slept, a process that was stopped, a clock that was set.
//!
//! Pure functions of what the clocks showed. None of this is a hang, and none of it is tested time.

use crate::base::os;

/// What the clocks show at one moment, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tick {
    /// Since an arbitrary start, without the time in which the machine slept.
    pub mono: f64,
    /// The same with that time; `None` where the system has no such clock.
    pub boot: Option<f64>,
    /// Since 1970, as the machine believes.
    pub wall: f64,
}

impl Tick {
    /// Now.
    pub fn now() -> Self {
        let (mono, boot, wall) = os::clocks();
        Tick { mono, boot, wall }
    }
}

/// Something that happened to the time between two ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jump {
    /// The machine slept (suspend) for so many seconds.
    Slept(f64),
    /// Nobody asked for so many seconds: the process was stopped, or got no processor.
    Stopped(f64),
    /// The wall clock was set, by so many seconds.
    Set(f64),
}

impl Jump {
    /// The word in the journal.
    pub const fn name(self) -> &'static str {
        match self {
            Jump::Slept(_) => "slept",
            Jump::Stopped(_) => "stopped",
            Jump::Set(_) => "set",
        }
    }
    /// By how many seconds.
    pub const fn seconds(self) -> f64 {
        match self {
            Jump::Slept(s) | Jump::Stopped(s) | Jump::Set(s) => s,
        }
    }
    /// In words.
    pub fn words(self) -> String {
        match self {
            Jump::Slept(s) => format!("the machine slept for {s:.1} s; not tested time, and no hang"),
            Jump::Stopped(s) => format!("this program was stopped for {s:.1} s; not tested time, and no hang"),
            Jump::Set(s) => format!("the wall clock was set by {s:+.1} s; the soak goes by another one"),
        }
    }
}

/// Smallest jump of a clock, in seconds, that is told.
const LEAST: f64 = 1.0;
/// Part by which clocks may run apart (NTP slews by at most 500 parts in a million).
const SLEW: f64 = 1e-3;
/// Longest time from one tick to the next, in seconds, that a busy machine explains.
const PAUSE: f64 = 2.0;

/// Compares each tick with the one before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clocks {
    last: Option<Tick>,
}

impl Clocks {
    /// Takes in a tick; gives what happened since the one before.
    pub fn tick(&mut self, now: Tick) -> Vec<Jump> {
        let Some(before) = self.last.replace(now) else { return Vec::new() };
        let mono = (now.mono - before.mono).max(0.0);
        let slack = LEAST + SLEW * mono;
        let mut jumps = Vec::new();
        let slept = match (before.boot, now.boot) {
            (Some(a), Some(b)) => (b - a) - mono,
            _ => 0.0,
        };
        if slept > slack {
            jumps.push(Jump::Slept(slept));
        }
        if mono > PAUSE {
            jumps.push(Jump::Stopped(mono));
        }
        let passed = mono + if slept > slack { slept } else { 0.0 };
        let set = (now.wall - before.wall) - passed;
        if set.abs() > slack {
            jumps.push(Jump::Set(set));
        }
        jumps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jumps over a series of (monotonic, with sleep, wall) seconds.
    fn jumps(ticks: &[(f64, f64, f64)]) -> Vec<Jump> {
        let mut clocks = Clocks::default();
        let tick = |&(mono, boot, wall): &(f64, f64, f64)| Tick { mono, boot: Some(boot), wall };
        ticks.iter().flat_map(|t| clocks.tick(tick(t))).collect()
    }

    #[test]
    fn time_that_passes_evenly_is_no_jump() {
        // Ten hours of ticks of 0.1 s, the wall clock slewed by 500 parts in a million.
        let even: Vec<_> = (0..360_000).map(|i| f64::from(i) * 0.1).map(|t| (t, t + 5.0, 1.7e9 + t * 1.0005)).collect();
        assert_eq!(jumps(&even), []);
        assert_eq!(jumps(&[(0.0, 0.0, 0.0)]), []);
        // A busy machine.
        assert_eq!(jumps(&[(0.0, 0.0, 0.0), (1.9, 1.9, 1.9)]), []);
    }

    #[test]
    fn each_jump_has_its_own_name() {
        let slept = jumps(&[(10.0, 10.0, 100.0), (10.1, 3610.1, 3700.1)]);
        assert!(matches!(slept[..], [Jump::Slept(s)] if (s - 3600.0).abs() < 0.01), "{slept:?}");
        let stopped = jumps(&[(10.0, 10.0, 100.0), (40.0, 40.0, 130.0)]);
        assert!(matches!(stopped[..], [Jump::Stopped(s)] if (s - 30.0).abs() < 0.01), "{stopped:?}");
        for by in [-7200.0, 7200.0] {
            let set = jumps(&[(10.0, 10.0, 1e5), (10.1, 10.1, 1e5 + 0.1 + by)]);
            assert!(matches!(set[..], [Jump::Set(s)] if (s - by).abs() < 0.01), "{set:?}");
        }
        // Both at once: it slept for an hour and woke in another time.
        let both = jumps(&[(10.0, 10.0, 1e5), (10.1, 3610.1, 1e5)]);
        assert!(matches!(both[..], [Jump::Slept(s), Jump::Set(w)] if s > 3599.0 && w < -3599.0), "{both:?}");
        for jump in slept.iter().chain(&stopped).chain(&both) {
            assert!(jump.words().contains(&format!("{:.1} s", jump.seconds())), "{}", jump.words());
        }
    }

    #[test]
    fn a_system_without_that_clock_tells_of_the_wall_clock_only() {
        let mut clocks = Clocks::default();
        clocks.tick(Tick { mono: 0.0, boot: None, wall: 0.0 });
        let told = clocks.tick(Tick { mono: 0.1, boot: None, wall: 3600.1 });
        assert!(matches!(told[..], [Jump::Set(s)] if (s - 3600.0).abs() < 0.01), "{told:?}");
    }

    #[test]
    fn the_clocks_of_this_system_are_told() {
        let (a, b) = (Tick::now(), Tick::now());
        assert!(b.mono >= a.mono && a.wall > 1.6e9);
        if cfg!(target_os = "linux") {
            assert!(a.boot.is_some_and(|boot| boot + 1.0 > a.mono));
        }
    }
}
