//! Locks and atomics of what is model-checked: `tests/loom` has the same names from the checker.

pub(super) use std::hint::spin_loop as relax;
pub(super) use std::sync::atomic::{AtomicU64, Ordering};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread::yield_now;
