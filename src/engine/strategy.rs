//! What the engine does about an error of a GPU, as data, and how a program has its say.
//!
//! ```
//! use std::time::Duration;
//!
//! use gpuctl::base::{Class, Code};
//! use gpuctl::engine::{Engine, Strategy};
//!
//! # fn main() -> gpuctl::base::Result<()> {
//! let engine = Engine::builder()
//!     .profile("preset:default")
//!     // Rather an error than a slow answer where memory is short; copies may be tried five times.
//!     .strategy(|e| match (e.class(), e.code()) {
//!         (Class::Oom, _) => Some(Strategy::Fail),
//!         (_, Code::TransferFailed) => Some(Strategy::Retry { times: 5, backoff: Duration::from_millis(50) }),
//!         _ => None,
//!     })
//!     .on_error(|event| log::warn!("{event}"))
//!     .build()?;
//! # drop(engine);
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::base::{Case, Class, Code, Error};

/// Longest pause before a call is tried again.
const LONGEST: Duration = Duration::from_secs(1);

/// What to do about an error of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Make the call again on the same device, with fresh copies of the operands, at most so many times; then as `Fallback`.
    Retry {
        /// Tries after the first one.
        times: u32,
        /// Pause before the first of them, on the device's clock; it doubles each time, up to a second.
        backoff: Duration,
    },
    /// The CPU makes the call; with `no_fallback` as `Fail`.
    Fallback,
    /// The call ends with the error.
    Fail,
}

impl Strategy {
    /// What is done about an error unless the program decides otherwise. Whether the device goes on to be used is another
    /// matter ([`super::recover`]).
    pub const fn of(code: Code) -> Strategy {
        match code.row().class {
            Class::Usage => Strategy::Fail,
            // What other calls hold may come back, and idle memory is released first.
            Class::Oom | Class::Transient => Strategy::ONCE_MORE,
            // A compiler that is short of memory or killed says the same as one that meets a mistake.
            Class::Internal if matches!(code, Code::CompileFailed) => Strategy::ONCE_MORE,
            // The same call would fail again, or on a context that is broken.
            Class::Unsupported | Class::Sticky | Class::Lost | Class::Internal => Strategy::Fallback,
        }
    }

    const ONCE_MORE: Strategy = Strategy::Retry { times: 1, backoff: Duration::ZERO };

    /// What is done about an error, in words.
    pub const fn text(code: Code) -> &'static str {
        match code.row().class {
            Class::Usage => "the call ends with it, whatever the program's strategy is",
            Class::Unsupported => "the CPU makes the call",
            Class::Oom => "idle memory is released and the call made once more, then the CPU makes it",
            Class::Transient if matches!(code, Code::Cancelled) => "the call ends with it",
            Class::Transient => {
                "the call is made once more, then the CPU makes it; after three in a row the device rests"
            }
            Class::Sticky => "the CPU makes the call; the device is not used any more in this process",
            Class::Lost => "the CPU makes the call; the device rests, is opened anew and must give a known answer",
            Class::Internal if matches!(code, Code::CompileFailed) => {
                "the call is made once more, then the CPU makes it; not compiled again for this call"
            }
            Class::Internal => "the CPU makes the call",
        }
    }
}

/// What the engine did about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The call is made again on the device after this pause.
    Retry(Duration),
    /// The CPU makes the call.
    Fallback,
    /// The call ends with the error.
    Fail,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Taken::Retry(after) if after.is_zero() => f.write_str("tried again"),
            Taken::Retry(after) => write!(f, "tried again after {} ms", after.as_millis()),
            Taken::Fallback => f.write_str("the CPU makes the call"),
            Taken::Fail => f.write_str("the call ends with it"),
        }
    }
}

/// An error of a GPU, and what the engine does about it.
#[derive(Debug)]
#[non_exhaustive]
pub struct ErrorEvent<'e> {
    /// The error.
    pub error: &'e Error,
    /// Id of the device.
    pub device: &'e str,
    /// The call.
    pub case: &'e Case,
    /// Tries of the call before this one.
    pub attempt: u32,
    /// What is done about it.
    pub taken: Taken,
    /// True if the device is out of service now.
    pub quarantined: bool,
}

impl fmt::Display for ErrorEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = if self.quarantined { "; the device is out of service" } else { "" };
        write!(f, "{}; {}{out}", self.error, self.taken)
    }
}

type Handler = Arc<dyn Fn(&ErrorEvent<'_>) + Send + Sync>;
type Decider = Arc<dyn Fn(&Error) -> Option<Strategy> + Send + Sync>;

/// What a program has registered.
#[derive(Clone, Default)]
pub(super) struct Hooks {
    handlers: Vec<Handler>,
    deciders: Vec<Decider>,
}

impl Hooks {
    pub(super) fn handler(&mut self, handler: Handler) {
        self.handlers.push(handler);
    }

    pub(super) fn decider(&mut self, decider: Decider) {
        self.deciders.push(decider);
    }

    /// What to do about an error after `attempt` earlier tries of the same call. `no_fallback`: the CPU may not make it.
    pub(super) fn decide(&self, e: &Error, attempt: u32, no_fallback: bool) -> Taken {
        // A wrong request is wrong everywhere, and who interrupts a call wants no other one in its place.
        if e.class() == Class::Usage || e.code() == Code::Cancelled {
            return Taken::Fail;
        }
        let told = self.deciders.iter().find_map(|d| contained("a strategy", || d(e)).flatten());
        let otherwise = if no_fallback { Taken::Fail } else { Taken::Fallback };
        match told.unwrap_or(Strategy::of(e.code())) {
            Strategy::Fail => Taken::Fail,
            Strategy::Fallback => otherwise,
            // Not even if the program says so: what comes back from such a context may be wrong.
            Strategy::Retry { .. } if matches!(e.class(), Class::Lost | Class::Sticky) => otherwise,
            Strategy::Retry { times, .. } if attempt >= times => otherwise,
            Strategy::Retry { backoff, .. } => {
                let doubled = backoff.saturating_mul(1u32.checked_shl(attempt).unwrap_or(u32::MAX));
                Taken::Retry(doubled.min(LONGEST))
            }
        }
    }

    /// Tells all handlers. Call it without any lock held: a handler may use the engine.
    pub(super) fn tell(&self, event: &ErrorEvent<'_>) {
        for handler in &self.handlers {
            contained("an error handler", || handler(event));
        }
    }
}

/// A panic of the program's own code must not end a call that has an answer.
fn contained<T>(what: &str, call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| log::error!("{what} panicked; the call goes on without it")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn of(class: Class) -> Error {
        let special = [Code::Cancelled, Code::CompileFailed];
        let code = Code::ALL.iter().find(|c| c.row().class == class && !special.contains(c)).unwrap();
        Error::new(*code, "x")
    }

    fn deciding(d: impl Fn(&Error) -> Option<Strategy> + Send + Sync + 'static) -> Hooks {
        let mut hooks = Hooks::default();
        hooks.decider(Arc::new(d));
        hooks
    }

    #[test]
    fn each_class_has_its_strategy() {
        let plain = Hooks::default();
        for (class, tries) in [
            (Class::Usage, vec![Taken::Fail]),
            (Class::Unsupported, vec![Taken::Fallback]),
            (Class::Oom, vec![Taken::Retry(Duration::ZERO), Taken::Fallback]),
            (Class::Transient, vec![Taken::Retry(Duration::ZERO), Taken::Fallback]),
            (Class::Sticky, vec![Taken::Fallback]),
            (Class::Lost, vec![Taken::Fallback]),
            (Class::Internal, vec![Taken::Fallback]),
        ] {
            for (attempt, taken) in tries.into_iter().enumerate() {
                assert_eq!(plain.decide(&of(class), attempt as u32, false), taken, "{class:?} {attempt}");
                let strict = if taken == Taken::Fallback { Taken::Fail } else { taken };
                assert_eq!(plain.decide(&of(class), attempt as u32, true), strict, "{class:?} {attempt}");
            }
            assert!(!Strategy::text(of(class).code()).is_empty());
        }
        let compiler = Error::new(Code::CompileFailed, "x");
        assert_eq!(plain.decide(&compiler, 0, false), Taken::Retry(Duration::ZERO));
        assert_eq!(plain.decide(&compiler, 1, false), Taken::Fallback);
        assert_eq!(plain.decide(&Error::new(Code::Cancelled, "x"), 0, false), Taken::Fail);
    }

    #[test]
    fn a_program_decides_but_for_what_cannot_be_right() {
        let often = deciding(|_| Some(Strategy::Retry { times: 40, backoff: 100 * MS }));
        assert_eq!(often.decide(&of(Class::Internal), 3, false), Taken::Retry(800 * MS));
        assert_eq!(often.decide(&of(Class::Internal), 4, false), Taken::Retry(LONGEST), "no longer than a second");
        assert_eq!(often.decide(&of(Class::Internal), 39, false), Taken::Retry(LONGEST), "no overflow");
        assert_eq!(often.decide(&of(Class::Internal), 40, false), Taken::Fallback);
        for class in [Class::Lost, Class::Sticky] {
            assert_eq!(often.decide(&of(class), 0, false), Taken::Fallback, "{class:?} is never tried again");
        }
        let answers = deciding(|_| Some(Strategy::Fallback));
        assert_eq!(answers.decide(&of(Class::Usage), 0, false), Taken::Fail, "a wrong request");
        // The first that says something decides; one that panics says nothing.
        let mut several = deciding(|_| None);
        several.decider(Arc::new(|_| panic!("planted: a strategy that panics")));
        several.decider(Arc::new(|e| (e.class() == Class::Oom).then_some(Strategy::Fail)));
        several.decider(Arc::new(|_| Some(Strategy::Fallback)));
        assert_eq!(several.decide(&of(Class::Oom), 0, false), Taken::Fail);
        assert_eq!(several.decide(&of(Class::Transient), 0, false), Taken::Fallback);
    }
}
