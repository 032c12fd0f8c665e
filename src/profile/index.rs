//! A profile's entries by hash, so that placing a call takes the same few steps however many entries there are.

use std::hash::{BuildHasher, RandomState};

use crate::base::DType;

use super::choose::{self, ALWAYS, Call, Find, Placed, Policy, RESIDENT, Row};
use super::{ANY, CPU_AUTO, Decision, Entry, Key, Kind, Place, Profile, ProfileDevice, Reason, Verdict};

/// Steps of lookups: blocks of 8 bytes hashed, slots visited, keys compared. Counted in tests only.
#[cfg(test)]
pub(super) mod steps {
    use std::cell::Cell;
    thread_local!(static STEPS: Cell<u64> = const { Cell::new(0) });
    pub(crate) fn step() {
        STEPS.with(|s| s.set(s.get() + 1));
    }
    pub(crate) fn taken() -> u64 {
        STEPS.with(Cell::take)
    }
}

#[inline(always)]
fn step() {
    #[cfg(test)]
    steps::step();
}

/// Folds a word into a hash: the halves of a 128-bit product (as in wyhash).
#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    step();
    let product = u128::from(hash ^ 0xA076_1D64_78BD_642F) * u128::from(word ^ 0xE703_7ED1_A0B4_28DB);
    (product as u64) ^ (product >> 64) as u64
}

/// Folds a text with its length into a hash.
#[inline(always)]
fn text(mut hash: u64, s: &str) -> u64 {
    let b = s.as_bytes();
    let n = b.len();
    if n > 8 {
        let (words, _) = b.as_chunks::<8>();
        for word in &words[..(n - 1) / 8] {
            hash = mix(hash, u64::from_le_bytes(*word));
        }
    }
    // The last 1 to 8 bytes: one read or two overlapping ones, or single bytes of the shortest texts.
    let last = if let Some(word) = b.last_chunk::<8>() {
        u64::from_le_bytes(*word)
    } else if let (Some(low), Some(high)) = (b.first_chunk::<4>(), b.last_chunk::<4>()) {
        u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << 32
    } else {
        b.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
    };
    mix(hash ^ (n as u64) << 56, last)
}

/// Numbers by hash: open addressing, at most half full.
#[derive(Clone, Debug, Default)]
struct Table {
    /// The hash's upper half and the number; a number of `u32::MAX` is an empty slot. A power of two of them.
    slots: Vec<(u32, u32)>,
}

impl Table {
    fn new(most: usize) -> Self {
        Table { slots: vec![(0, u32::MAX); (2 * most).next_power_of_two().max(2)] }
    }

    /// The first number of that hash that `is` accepts, or the empty slot where it would be.
    #[inline(always)]
    fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        // Ends at an empty slot: half of them are.
        loop {
            step();
            let Some((tag, number)) = self.slots.get(at) else { return Err(0) };
            if *number == u32::MAX {
                return Err(at);
            }
            if *tag == (hash >> 32) as u32 && is(*number) {
                return Ok(*number);
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a number unless `is` accepts one that is there.
    fn insert(&mut self, hash: u64, number: u32, is: impl FnMut(u32) -> bool) {
        if let Err(at) = self.find(hash, is) {
            self.slots[at] = ((hash >> 32) as u32, number);
        }
    }
}

/// Texts by number: those of entries, and where words of the program itself lie in memory.
#[derive(Clone, Debug, Default)]
struct Names {
    seed: u64,
    by_text: Table,
    texts: Vec<String>,
    /// Address, length and number of words that live as long as the program: the same place and length are the same word,
    /// whatever its length, without a branch that depends on it. A length of 0 is an empty slot; a power of two of them.
    places: Vec<(usize, usize, u32)>,
}

/// The number of no text.
const NO_NAME: u32 = u32::MAX;

impl Names {
    /// For at most so many texts.
    fn new(seed: u64, most: usize) -> Self {
        Names { seed, by_text: Table::new(most), texts: Vec::new(), places: vec![(0, 0, NO_NAME); 2] }
    }

    fn add(&mut self, word: &str) -> u32 {
        let found = self.by_words(word);
        if found != NO_NAME {
            return found;
        }
        let number = self.texts.len() as u32;
        self.texts.push(word.to_string());
        self.by_text.insert(text(self.seed, word), number, |_| false);
        number
    }

    /// Learns where words lie; those that no entry has are of no use.
    fn learn(&mut self, words: impl IntoIterator<Item = &'static str>) {
        let mut known: Vec<_> = words
            .into_iter()
            .map(|w| (w.as_ptr() as usize, w.len(), self.by_words(w)))
            .filter(|w| w.1 > 0 && w.2 != NO_NAME)
            .collect();
        known.sort_unstable();
        known.dedup();
        // Mostly empty, so that the first slot says nearly always all.
        self.places = vec![(0, 0, NO_NAME); (8 * known.len()).next_power_of_two().max(2)];
        for word in known {
            let mut at = self.slot(word.0);
            while self.places[at].1 != 0 {
                at = (at + 1) & (self.places.len() - 1);
            }
            self.places[at] = word;
        }
    }

    #[inline(always)]
    fn slot(&self, address: usize) -> usize {
        // The product's upper half depends on all bits of the address.
        ((address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & (self.places.len() - 1)
    }

    /// The number of a word, or [`NO_NAME`].
    #[inline(always)]
    fn number(&self, word: &str) -> u32 {
        let (address, length) = (word.as_ptr() as usize, word.len());
        let mut at = self.slot(address);
        while let Some((a, n, number)) = self.places.get(at).filter(|p| p.1 != 0) {
            step();
            if *a == address && *n == length {
                return *number;
            }
            at = (at + 1) & (self.places.len() - 1);
        }
        self.by_words(word)
    }

    fn by_words(&self, word: &str) -> u32 {
        let is = |n: u32| self.texts.get(n as usize).is_some_and(|t| t == word);
        self.by_text.find(text(self.seed, word), is).unwrap_or(NO_NAME)
    }
}

/// What of a key does not depend on where the operands are: the numbers of op, family, unit and CPU variant, dtype, threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    names: [u32; 4],
    threads: u32,
    dtype: DType,
}

impl Named {
    #[inline(always)]
    fn hash(&self, seed: u64) -> u64 {
        let [op, family, unit, variant] = self.names.map(u64::from);
        let words = mix(seed ^ (op << 32 | family), unit << 32 | variant);
        mix(words, (self.dtype as u64) << 32 | u64::from(self.threads))
    }
}

/// An entry's key and rule in one place of memory.
#[derive(Clone, Copy, Debug)]
struct Compact {
    named: Named,
    device: u32,
    residency: u16,
    verdict: Verdict,
    entry: u32,
    has_least: bool,
    least: u128,
}

/// Words by number; few, so compared one by one.
#[derive(Clone, Debug, Default)]
struct Words(Vec<String>);

impl Words {
    fn number(&mut self, word: &str) -> usize {
        self.find(word).unwrap_or_else(|| {
            self.0.push(word.to_string());
            self.0.len() - 1
        })
    }
    fn find(&self, word: &str) -> Option<usize> {
        self.0.iter().position(|w| w == word)
    }
}

/// A profile with its entries indexed. Answers exactly what [`Profile::choose`] and [`Profile::lookup`] do, in 50 to 75 ns
/// instead of a time that grows with the profile. Immutable; shared between threads.
#[derive(Clone, Debug)]
pub struct Chooser {
    profile: Profile,
    seed: u64,
    /// By full key; equal keys: the first entry.
    exact: Table,
    keys: Vec<Compact>,
    names: Names,
    /// The number of [`CPU_AUTO`], the usual CPU variant.
    auto: u32,
    /// Devices in the profile's order, then others that entries name.
    uids: Words,
    residencies: Words,
    /// Numbers of `always` and `resident`.
    usual: [Option<usize>; 2],
    /// An entry for each leading part of a key: what a call without an entry failed at.
    parts: Table,
    /// Entries that match more than one key, in order; presets have them.
    wild: Vec<u32>,
}

/// Parts of a key, in the order of [`Reason`]s for their difference.
const PARTS: usize = 8;

/// The reason for a difference in each part.
const DIFFERENCES: [Reason; PARTS] = [
    Reason::NoOp,
    Reason::NoDtype,
    Reason::NoFamily,
    Reason::NoDevice,
    Reason::NoResidency,
    Reason::OtherThreads,
    Reason::OtherCpuVariant,
    Reason::OtherUnit,
];

/// An entry's own key, if it has one: `any` and 0 threads match more than one.
fn own_key(entry: &Entry) -> Option<Key<'_>> {
    let words = [&entry.dtype, &entry.family, &entry.device, &entry.residency, &entry.cpu_variant];
    if words.iter().any(|w| *w == ANY) || entry.threads == 0 {
        return None;
    }
    Some(Key {
        op: &entry.op,
        dtype: entry.dtype.parse().ok()?,
        family: Some(&entry.family),
        unit: &entry.unit,
        device_uid: &entry.device,
        residency: &entry.residency,
        threads: entry.threads,
        cpu_variant: &entry.cpu_variant,
    })
}

#[inline(always)]
fn full_hash(call: u64, device: usize, residency: usize) -> u64 {
    mix(call, (device as u64) << 16 | residency as u64)
}

/// The first so many parts of a key.
fn part_hash(seed: u64, key: &Key<'_>, parts: usize) -> u64 {
    let family = key.family.unwrap_or(ANY);
    let all = [key.op, key.dtype.name(), family, key.device_uid, key.residency, "", key.cpu_variant, key.unit];
    let hash = all.iter().take(parts).fold(mix(seed, parts as u64), |h, part| text(h, part));
    if parts > 5 { mix(hash, u64::from(key.threads)) } else { hash }
}

impl Chooser {
    /// Indexes a profile.
    pub fn new(profile: Profile) -> Self {
        Self::knowing(profile, [])
    }

    /// Indexes a profile for calls that are mostly named by these very words, as `op::words()` has them: a word is then known
    /// by its place in memory and need not be read. The answers are the same without.
    pub fn knowing(profile: Profile, words: impl IntoIterator<Item = &'static str>) -> Self {
        // A number of this process, so that no file can be written whose keys all share their hashes.
        let mut chooser = Self::seeded(profile, RandomState::new().hash_one(0u8));
        chooser.names.learn(words);
        chooser
    }

    fn seeded(profile: Profile, seed: u64) -> Self {
        let n = profile.entries.len();
        let mut c = Chooser {
            seed,
            exact: Table::new(n),
            keys: Vec::new(),
            names: Names::new(seed, 4 * n),
            auto: NO_NAME,
            uids: Words(profile.devices.iter().map(|d| d.uid.clone()).collect()),
            residencies: Words::default(),
            usual: [None; 2],
            parts: Table::new(n * (PARTS - 1)),
            wild: Vec::new(),
            profile: Profile::default(),
        };
        // Numbers of devices are those of the profile's list only while each uid stands there once.
        let unique = c.uids.0.iter().enumerate().all(|(i, uid)| c.uids.find(uid) == Some(i));
        for (i, entry) in profile.entries.iter().enumerate() {
            let Ok(number) = u32::try_from(i) else { break };
            let Some(key) = own_key(entry).filter(|_| unique) else {
                c.wild.push(number);
                continue;
            };
            let (device, residency) = (c.uids.number(&entry.device), c.residencies.number(&entry.residency));
            let named = Named {
                names: [&entry.op, &entry.family, &entry.unit, &entry.cpu_variant].map(|w| c.names.add(w)),
                threads: key.threads,
                dtype: key.dtype,
            };
            let least = entry.threshold_work();
            c.keys.push(Compact {
                named,
                device: device as u32,
                residency: residency as u16,
                verdict: entry.verdict,
                entry: number,
                has_least: least.is_some(),
                least: least.unwrap_or(0),
            });
            let entries = &profile.entries;
            let keys = &c.keys;
            let same = |k: u32| entries[keys[k as usize].entry as usize].differs(&key).is_none();
            c.exact.insert(full_hash(named.hash(seed), device, residency), c.keys.len() as u32 - 1, same);
            for parts in 1..PARTS {
                let agrees = |e: u32| agrees(&entries[e as usize], &key, parts);
                c.parts.insert(part_hash(seed, &key, parts), number, agrees);
            }
        }
        c.auto = c.names.by_words(CPU_AUTO);
        c.usual = [ALWAYS, RESIDENT].map(|r| c.residencies.find(r));
        c.profile = profile;
        c
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Where a call goes; see [`Profile::choose`]. Allocates nothing.
    pub fn choose(&self, policy: Policy, call: &Call<'_>) -> Placed<'_> {
        self.choose_among(policy, call, |_| true)
    }

    /// The same among the devices, by their number in the profile, that `usable` accepts. It is asked of a device only if
    /// that would be chosen.
    pub fn choose_among(&self, policy: Policy, call: &Call<'_>, mut usable: impl FnMut(usize) -> bool) -> Placed<'_> {
        let named = self.named(call.op, call.family, call.unit, call.cpu_variant, call.dtype, call.threads);
        let hash = named.hash(self.seed);
        choose::place(&Hashed { chooser: self, named, hash }, policy, call, &mut usable)
    }

    #[inline(always)]
    fn named(&self, op: &str, family: Option<&str>, unit: &str, variant: &str, dtype: DType, threads: u32) -> Named {
        let number = |word| self.names.number(word);
        // No entry has no family.
        let family = family.map_or(NO_NAME, number);
        let variant = if variant == CPU_AUTO { self.auto } else { number(variant) };
        Named { names: [number(op), family, number(unit), variant], threads, dtype }
    }

    /// The profile's answer for one key; see [`Profile::lookup`]. Allocates nothing.
    pub fn lookup(&self, key: &Key<'_>, work: u128) -> Decision<'_> {
        let assumed = self.profile.kind == Kind::Preset;
        let named = self.named(key.op, key.family, key.unit, key.cpu_variant, key.dtype, key.threads);
        let at = self.uids.find(key.device_uid).zip(self.residencies.find(key.residency));
        match self.row(&named, named.hash(self.seed), at, || *key) {
            Ok(row) => {
                let (place, why) = row.rule(work);
                Decision { place, why, entry: Some(row.entry), assumed }
            }
            Err(why) => Decision { place: Place::Cpu, why, entry: None, assumed },
        }
    }

    /// The entry of a call on a device of the profile with operands in this residency, if there is one.
    pub fn entry(&self, call: &Call<'_>, device: &ProfileDevice, residency: &str) -> Option<&Entry> {
        self.lookup(&call.key(&device.uid, residency), call.features.work).entry
    }

    /// The entry of a key; `at` are the numbers of its device and residency, if any entry has them.
    #[inline(always)]
    fn row<'k>(
        &self,
        named: &Named,
        hash: u64,
        at: Option<(usize, usize)>,
        key: impl Fn() -> Key<'k>,
    ) -> Result<Row<'_>, Reason> {
        let found = at.and_then(|(device, residency)| {
            let is = |k: u32| {
                step();
                self.keys.get(k as usize).is_some_and(|k| {
                    k.named == *named && k.device as usize == device && usize::from(k.residency) == residency
                })
            };
            let k = self.exact.find(full_hash(hash, device, residency), is).ok()?;
            self.keys.get(k as usize)
        });
        if !self.wild.is_empty() {
            let before = found.map_or(u32::MAX, |k| k.entry);
            let mut earlier = self.wild.iter().take_while(|w| **w < before).map(|w| &self.profile.entries[*w as usize]);
            let key = key();
            if let Some(entry) = earlier.find(|e| e.differs(&key).is_none()) {
                return Ok(Row::of(entry));
            }
        }
        match found.and_then(|k| Some((k, self.profile.entries.get(k.entry as usize)?))) {
            Some((k, entry)) => Ok(Row { entry, verdict: k.verdict, least: k.has_least.then_some(k.least) }),
            None => Err(self.missing(&key())),
        }
    }

    /// What the key failed at: as many leading parts as some entry has.
    #[cold]
    fn missing(&self, key: &Key<'_>) -> Reason {
        let wild = self.wild.iter().filter_map(|w| self.profile.entries[*w as usize].differs(key));
        let nearest = wild.max().unwrap_or(Reason::NoOp);
        let has = |parts: usize| {
            // No entry has no family.
            let possible = parts < 3 || key.family.is_some();
            let agrees = |e: u32| agrees(&self.profile.entries[e as usize], key, parts);
            possible && self.parts.find(part_hash(self.seed, key, parts), agrees).is_ok()
        };
        // An entry that agrees in more parts agrees in fewer.
        let most = [4, 2, 1].iter().fold(0, |most, more| if has(most + more) { most + more } else { most });
        nearest.max(DIFFERENCES[most])
    }
}

/// Whether an entry agrees with a key in its first so many parts.
fn agrees(entry: &Entry, key: &Key<'_>, parts: usize) -> bool {
    step();
    entry.differs(key).is_none_or(|why| DIFFERENCES.iter().position(|d| *d == why).is_some_and(|at| at >= parts))
}

/// A call's numbers and hash with the index.
struct Hashed<'c> {
    chooser: &'c Chooser,
    named: Named,
    hash: u64,
}

impl<'c> Find<'c> for Hashed<'c> {
    fn profile(&self) -> &'c Profile {
        &self.chooser.profile
    }
    #[inline(always)]
    fn find(&self, call: &Call<'_>, device: Option<usize>, residency: &'static str) -> Result<Row<'c>, Reason> {
        let c = self.chooser;
        let number = c.usual[usize::from(residency == RESIDENT)];
        c.row(&self.named, self.hash, device.zip(number), || {
            let uid = device.and_then(|d| c.profile.devices.get(d)).map_or("", |d| d.uid.as_str());
            call.key(uid, residency)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Features;
    use crate::profile::Operands;

    /// The steps of a choice do not depend on the machine, and hardly on the number of entries.
    #[test]
    fn steps_per_choice_are_few() {
        let mut p = Profile::new(Kind::Calibrated, "synthetic");
        p.devices.push(ProfileDevice { uid: "u".into(), backend: "cuda".into(), ..ProfileDevice::default() });
        let mut means = Vec::new();
        for n in [100u32, 10_000] {
            p.entries = (0..n)
                .map(|i| Entry {
                    op: format!("an_op_{}", i / 50),
                    dtype: "f32".into(),
                    family: "square".into(),
                    device: "u".into(),
                    residency: ALWAYS.into(),
                    threads: 1 + i % 50,
                    cpu_variant: CPU_AUTO.into(),
                    unit: "dim".into(),
                    verdict: Verdict::Always,
                    ..Entry::default()
                })
                .collect();
            let chooser = Chooser::seeded(p.clone(), 1);
            let (mut sum, mut most) = (0, 0);
            for e in &p.entries {
                let call = Call {
                    op: &e.op,
                    family: Some(&e.family),
                    threads: e.threads,
                    operands: Operands::Host,
                    features: Features::default(),
                    ..Call::own("", "dim", 1)
                };
                steps::taken();
                assert_eq!(chooser.choose(Policy::Automatic, &call).place, Place::Gpu);
                let taken = steps::taken();
                sum += taken;
                most = most.max(taken);
            }
            means.push(sum as f64 / f64::from(n));
            assert!(most < 40, "{n} entries: a choice took {most} steps");
        }
        assert!(
            means[1] < 12.0 && means[1] < means[0] + 1.5,
            "steps per choice with 100 and 10,000 entries: {means:?}"
        );
    }
}
