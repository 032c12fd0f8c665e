//! Locks that the sanitizer sees through: every step is an atomic operation of this crate. `OPEN` locks let everybody in, which
//! is the planted race.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::LockResult;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Lock<T, const OPEN: bool> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: a lock that is not open lets one thread at a time reach the value; an open one is what is to be found.
unsafe impl<T: Send, const OPEN: bool> Sync for Lock<T, OPEN> {}

impl<T: Default, const OPEN: bool> Default for Lock<T, OPEN> {
    fn default() -> Self {
        Lock::new(T::default())
    }
}

impl<T, const OPEN: bool> Lock<T, OPEN> {
    pub(crate) fn new(value: T) -> Self {
        Lock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> LockResult<Guard<'_, T, OPEN>> {
        while !OPEN && self.held.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(Guard { lock: self })
    }
}

pub(crate) struct Guard<'l, T, const OPEN: bool> {
    lock: &'l Lock<T, OPEN>,
}

impl<T, const OPEN: bool> Deref for Guard<'_, T, OPEN> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, const OPEN: bool> DerefMut for Guard<'_, T, OPEN> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, const OPEN: bool> Drop for Guard<'_, T, OPEN> {
    fn drop(&mut self) {
        if !OPEN {
            self.lock.held.store(false, Ordering::Release);
        }
    }
}

/// Wakes everybody, as a condition variable may.
#[derive(Default)]
pub(crate) struct Condvar {
    rung: AtomicU64,
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar::default()
    }

    pub(crate) fn notify_one(&self) {
        self.notify_all();
    }

    pub(crate) fn notify_all(&self) {
        self.rung.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn wait<'l, T, const OPEN: bool>(&self, guard: Guard<'l, T, OPEN>) -> LockResult<Guard<'l, T, OPEN>> {
        self.until(guard, None)
    }

    pub(crate) fn wait_timeout<'l, T, const OPEN: bool>(
        &self,
        guard: Guard<'l, T, OPEN>,
        limit: Duration,
    ) -> LockResult<(Guard<'l, T, OPEN>, ())> {
        let end = Instant::now().checked_add(limit);
        match self.until(guard, end) {
            Ok(guard) => Ok((guard, ())),
            Err(poisoned) => Ok((poisoned.into_inner(), ())),
        }
    }

    fn until<'l, T, const OPEN: bool>(
        &self,
        guard: Guard<'l, T, OPEN>,
        end: Option<Instant>,
    ) -> LockResult<Guard<'l, T, OPEN>> {
        let seen = self.rung.load(Ordering::Acquire);
        let lock = guard.lock;
        drop(guard);
        while self.rung.load(Ordering::Acquire) == seen && end.is_none_or(|end| Instant::now() < end) {
            std::thread::yield_now();
        }
        lock.lock()
    }
}

/// The standard library's one ends with a fence, which the sanitizer does not follow.
pub(crate) struct Arc<T>(NonNull<Counted<T>>);

struct Counted<T> {
    owners: AtomicUsize,
    value: T,
}

// SAFETY: as for the standard library's.
unsafe impl<T: Send + Sync> Send for Arc<T> {}
// SAFETY: as for the standard library's.
unsafe impl<T: Send + Sync> Sync for Arc<T> {}

impl<T> Arc<T> {
    pub(crate) fn new(value: T) -> Self {
        Arc(NonNull::from(Box::leak(Box::new(Counted { owners: AtomicUsize::new(1), value }))))
    }

    fn counted(&self) -> &Counted<T> {
        // SAFETY: freed by the last owner alone.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for Arc<T> {
    fn clone(&self) -> Self {
        self.counted().owners.fetch_add(1, Ordering::Relaxed);
        Arc(self.0)
    }
}

impl<T> Deref for Arc<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.counted().value
    }
}

impl<T> Drop for Arc<T> {
    fn drop(&mut self) {
        if self.counted().owners.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: made by Box, and this was the last owner.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

/// Names of a set of locks.
macro_rules! names {
    ($name:ident, $open:literal) => {
        pub(crate) mod $name {
            #[allow(unused_imports, reason = "not every file needs every name")]
            pub(crate) use super::{Arc, AtomicU64, Condvar, Ordering};
            #[allow(unused_imports, reason = "as above")]
            pub(crate) use std::hint::spin_loop as relax;
            #[allow(unused_imports, reason = "as above")]
            pub(crate) use std::thread::yield_now;
            pub(crate) type Mutex<T> = super::Lock<T, $open>;
            pub(crate) type MutexGuard<'l, T> = super::Guard<'l, T, $open>;
        }
    };
}

names!(shut, false);
names!(open, true);
