//! The pool's shelves: what lies idle, by class of size, under one cap. Knows no device and no time.
//!
//! Generic over what is kept, and over nothing but locks and atomics, so that `tests/loom` can model-check it. Invariants:
//! what was put is taken at most once; the idle bytes of all classes together never exceed the cap, not even for a moment;
//! nothing is dropped while a lock is held.

use std::collections::VecDeque;

use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// What happens to what comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// Kept; over the cap the least recently used goes. At every trim a class shrinks to what it had in use at once since
    /// the one before.
    #[default]
    Adaptive,
    /// Kept until the cap; what is over it is released at once. Nothing is released for being idle.
    KeepAll,
    /// Kept; over the cap the least recently used goes. At a trim, what was not used for two trims goes.
    Lru,
    /// Released at once.
    None,
}

/// Something idle, and when it came (a count, no time).
struct Slot<T> {
    item: T,
    stamp: u64,
}

/// The idle ones of a class, the newest last, and what the class counted.
struct Class<T> {
    bytes: u64,
    idle: VecDeque<Slot<T>>,
    count: Count,
}

/// What a class counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Taken from the shelf.
    pub hits: u64,
    /// Asked for and not there.
    pub misses: u64,
    /// Brought back.
    pub returns: u64,
    /// In use now.
    pub live: u64,
    /// Bytes of those, as asked for.
    pub asked: u64,
    /// Most in use at once since the last trim.
    pub peak: u64,
    /// Released because the cap was reached.
    pub over_cap: u64,
    /// Released by trims.
    pub trimmed: u64,
}

/// All shelves.
pub(super) struct Shelves<T> {
    classes: Vec<Mutex<Class<T>>>,
    cap: u64,
    retention: Retention,
    idle_bytes: AtomicU64,
    /// Counts what comes back.
    ticks: AtomicU64,
    /// [`Shelves::ticks`] at the last two trims.
    before: Mutex<[u64; 2]>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<T> Shelves<T> {
    /// Shelves for classes of these sizes, which hold at most `cap` bytes together.
    pub(super) fn new(sizes: &[u64], cap: u64, retention: Retention) -> Self {
        let class = |bytes: &u64| Mutex::new(Class { bytes: *bytes, idle: VecDeque::new(), count: Count::default() });
        Shelves {
            classes: sizes.iter().map(class).collect(),
            cap,
            retention,
            idle_bytes: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            before: Mutex::new([0; 2]),
        }
    }

    /// Takes the one that came last, for `asked` bytes, and counts it as in use. Without one, `None`: the caller makes one,
    /// which counts as in use, too ([`Shelves::unmade`] if that fails).
    pub(super) fn take(&self, class: usize, asked: u64) -> Option<T> {
        let mut c = lock(self.classes.get(class)?);
        c.count.live += 1;
        c.count.asked += asked;
        c.count.peak = c.count.peak.max(c.count.live);
        match c.idle.pop_back() {
            Some(slot) => {
                c.count.hits += 1;
                // Inside the lock: a slot and its bytes are never seen apart by who holds it.
                self.idle_bytes.fetch_sub(c.bytes, Ordering::Relaxed);
                Some(slot.item)
            }
            None => {
                c.count.misses += 1;
                None
            }
        }
    }

    /// Puts back what was taken for `asked` bytes, or (`spent`) only counts that it is not in use any more. Gives what must
    /// be released.
    pub(super) fn put(&self, class: usize, asked: u64, item: T, spent: bool) -> Vec<T> {
        let mut out = Vec::new();
        let Some(shelf) = self.classes.get(class) else { return vec![item] };
        let bytes = {
            let mut c = lock(shelf);
            c.count.live = c.count.live.saturating_sub(1);
            c.count.asked = c.count.asked.saturating_sub(asked);
            c.count.returns += 1;
            if spent || self.retention == Retention::None || c.bytes > self.cap {
                drop(c);
                return vec![item];
            }
            if self.reserve(c.bytes) {
                let stamp = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
                c.idle.push_back(Slot { item, stamp });
                return out;
            }
            c.bytes
        };
        while !self.reserve(bytes) {
            let oldest = if self.retention == Retention::KeepAll { None } else { self.oldest() };
            match oldest {
                Some(old) => out.push(old),
                // Everything is in use or on its way: this one goes instead.
                None => {
                    lock(shelf).count.over_cap += 1;
                    out.push(item);
                    return out;
                }
            }
        }
        let stamp = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        lock(shelf).idle.push_back(Slot { item, stamp });
        out
    }

    /// One that was to be made could not be.
    pub(super) fn unmade(&self, class: usize, asked: u64) {
        if let Some(c) = self.classes.get(class) {
            let mut c = lock(c);
            c.count.live = c.count.live.saturating_sub(1);
            c.count.asked = c.count.asked.saturating_sub(asked);
        }
    }

    /// Room for so many bytes, if there is.
    fn reserve(&self, bytes: u64) -> bool {
        let room = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= self.cap);
        self.idle_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    /// Takes the least recently used one out of its shelf.
    fn oldest(&self) -> Option<T> {
        let front = |c: &Mutex<Class<T>>| lock(c).idle.front().map(|s| s.stamp);
        let class = self.classes.iter().filter_map(|c| Some((front(c)?, c))).min_by_key(|(stamp, _)| *stamp)?.1;
        let mut c = lock(class);
        // It may have been taken since; the next one of the class is nearly as old.
        let slot = c.idle.pop_front()?;
        c.count.over_cap += 1;
        self.idle_bytes.fetch_sub(c.bytes, Ordering::Relaxed);
        Some(slot.item)
    }

    /// Takes out everything idle.
    pub(super) fn clear(&self) -> Vec<T> {
        self.take_out(|c| c.idle.len())
    }

    /// Takes out what is not needed any more by the retention's rule; called at even intervals.
    pub(super) fn trim(&self) -> Vec<T> {
        let now = self.ticks.load(Ordering::Relaxed);
        let old = {
            let mut before = lock(&self.before);
            let old = before[0];
            *before = [before[1], now];
            old
        };
        match self.retention {
            Retention::KeepAll => Vec::new(),
            Retention::None => self.clear(),
            Retention::Lru => self.take_out(|c| c.idle.iter().take_while(|s| s.stamp <= old).count()),
            Retention::Adaptive => self.take_out(|c| {
                let needed = c.count.peak.saturating_sub(c.count.live);
                c.count.peak = c.count.live;
                c.idle.len().saturating_sub(usize::try_from(needed).unwrap_or(usize::MAX))
            }),
        }
    }

    /// Takes the oldest of every class out, as many as `number` says.
    fn take_out(&self, number: impl Fn(&mut Class<T>) -> usize) -> Vec<T> {
        let mut out = Vec::new();
        for class in &self.classes {
            let mut c = lock(class);
            let number = number(&mut c).min(c.idle.len());
            out.extend(c.idle.drain(..number).map(|s| s.item));
            c.count.trimmed += number as u64;
            self.idle_bytes.fetch_sub(number as u64 * c.bytes, Ordering::Relaxed);
        }
        out
    }

    /// Bytes of everything idle.
    pub(super) fn idle_bytes(&self) -> u64 {
        self.idle_bytes.load(Ordering::Relaxed)
    }

    /// Every class: its size, how many are idle, what it counted.
    pub(super) fn counts(&self) -> Vec<(u64, u64, Count)> {
        let of = |c: &Mutex<Class<T>>| {
            let c = lock(c);
            (c.bytes, c.idle.len() as u64, c.count)
        };
        self.classes.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_last_goes_first_and_nothing_is_there_twice() {
        let s = Shelves::new(&[10, 20], 1000, Retention::Lru);
        assert_eq!(s.take(0, 7), None);
        assert_eq!(s.take(0, 7), None);
        assert!(s.put(0, 7, 'a', false).is_empty() && s.put(0, 7, 'b', false).is_empty());
        assert_eq!((s.take(0, 7), s.take(0, 7), s.take(0, 7)), (Some('b'), Some('a'), None));
        assert_eq!(s.take(1, 7), None, "another class");
        let c = s.counts();
        assert_eq!((c[0].2.hits, c[0].2.misses, c[0].2.live, c[0].2.peak, c[0].2.asked), (2, 3, 3, 3, 21));
        assert_eq!(s.take(7, 7), None::<char>, "no such class");
    }

    #[test]
    fn the_cap_holds_over_all_classes() {
        let s = Shelves::new(&[10, 20], 40, Retention::Lru);
        for _ in 0..3 {
            s.take(0, 7);
            s.take(1, 7);
        }
        assert!(s.put(0, 7, 1, false).is_empty());
        assert!(s.put(1, 7, 2, false).is_empty());
        assert!(s.put(0, 7, 3, false).is_empty());
        assert_eq!(s.idle_bytes(), 40);
        // 20 bytes more: 1 (10 bytes) is the oldest, then 2.
        assert_eq!(s.put(1, 7, 4, false), [1, 2]);
        assert_eq!(s.idle_bytes(), 30);
        let keep = Shelves::new(&[10], 10, Retention::KeepAll);
        assert!(keep.put(0, 7, 1, false).is_empty());
        assert_eq!(keep.put(0, 7, 2, false), [2], "what is over the cap goes, not what lies there");
        let none = Shelves::new(&[10], 10, Retention::None);
        assert_eq!(none.put(0, 7, 1, false), [1]);
        assert_eq!(Shelves::new(&[10], 9, Retention::Lru).put(0, 7, 1, false), [1], "larger than the cap");
    }

    #[test]
    fn spent_ones_do_not_come_back() {
        let s = Shelves::new(&[10], 40, Retention::Lru);
        s.take(0, 7);
        assert_eq!(s.put(0, 7, 1, true), [1]);
        assert_eq!((s.take(0, 7), s.idle_bytes()), (None, 0));
    }

    #[test]
    fn idle_ones_go_after_two_trims() {
        let s = Shelves::new(&[10], 1000, Retention::Lru);
        s.put(0, 7, 1, false);
        assert!(s.trim().is_empty() && s.trim().is_empty());
        s.put(0, 7, 2, false);
        assert_eq!(s.trim(), [1]);
        assert!(s.trim().is_empty());
        assert_eq!(s.trim(), [2]);
        assert_eq!(s.idle_bytes(), 0);
    }

    #[test]
    fn an_adaptive_class_shrinks_to_its_last_need() {
        let s = Shelves::new(&[10], 1000, Retention::Adaptive);
        for _ in 0..5 {
            s.take(0, 7);
        }
        for i in 0..5 {
            s.put(0, 7, i, false);
        }
        assert!(s.trim().is_empty(), "five were in use at once");
        let (a, b) = (s.take(0, 7).unwrap(), s.take(0, 7).unwrap());
        s.put(0, 7, a, false);
        s.put(0, 7, b, false);
        assert_eq!(s.trim(), [0, 1, 2], "two were");
        assert_eq!(s.trim().len(), 2, "none was");
    }
}
