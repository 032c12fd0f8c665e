//! A profile's entries by hash, so that placing a call takes the same few steps however many entries there are.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use crate::base::DType;

use super::choose::{self, ALWAYS, Call, Find, Operands, Placed, Policy, RESIDENT, Row, Rule, SmallSends};
use super::model::Plain;
use super::slot::{Packed, Seeded, Slot};
use super::{ANY, CPU_AUTO, Decision, Entry, Key, Kind, Place, Profile, ProfileDevice, Reason};

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
pub(super) fn mix(hash: u64, word: u64) -> u64 {
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

/// The words that name a group of entries: op, family, unit.
type Words<'w> = [&'w str; 3];

/// The number of no group.
const NO_GROUP: u32 = u32::MAX;

/// Where the words of a group lie in memory.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Spot {
    op: usize,
    family: usize,
    unit: usize,
    /// Each of them below [`LONG`].
    lengths: u32,
    /// [`NO_GROUP`] is an empty slot.
    group: u32,
}

/// Words of this length or more are always read.
const LONG: usize = 1 << 10;

impl Spot {
    const EMPTY: Spot = Spot { op: 0, family: 0, unit: 0, lengths: 0, group: NO_GROUP };

    /// Where words lie, if they are not too long.
    #[inline(always)]
    fn of([op, family, unit]: Words<'_>) -> Option<Spot> {
        let at = |word: &str| word.as_ptr() as usize;
        if op.len() | family.len() | unit.len() >= LONG {
            return None;
        }
        let lengths = (op.len() | family.len() << 10 | unit.len() << 20) as u32;
        Some(Spot { op: at(op), family: at(family), unit: at(unit), lengths, group: NO_GROUP })
    }

    #[inline(always)]
    fn same_place(&self, other: &Spot) -> bool {
        let elsewhere = (self.op ^ other.op) | (self.family ^ other.family) | (self.unit ^ other.unit);
        elsewhere | (self.lengths ^ other.lengths) as usize == 0
    }

    /// The upper half depends on all bits of the addresses.
    #[inline(always)]
    fn hash(&self) -> u64 {
        let by = |address: usize, odd: u64| (address as u64).wrapping_mul(odd);
        by(self.op, 0x9E37_79B9_7F4A_7C15)
            ^ by(self.family, 0xC2B2_AE3D_27D4_EB4F)
            ^ by(self.unit, 0x1656_67B1_9E37_79F9)
    }
}

/// Groups by number: by their words, and by where words of the program itself lie in memory.
#[derive(Clone, Debug, Default)]
struct Groups {
    seed: u64,
    by_text: Table,
    texts: Vec<[String; 3]>,
    /// Words that live as long as the program: the same places and lengths are the same words, whatever they say, without a
    /// branch that depends on them. A power of two of them, mostly empty, so that the first slot says nearly always all.
    spots: Vec<Spot>,
}

impl Groups {
    /// For at most so many groups.
    fn new(seed: u64, most: usize) -> Self {
        Groups { seed, by_text: Table::new(most), texts: Vec::new(), spots: vec![Spot::EMPTY; 2] }
    }

    fn add(&mut self, words: &Words<'_>) -> u32 {
        let found = self.by_words(words);
        if found != NO_GROUP {
            return found;
        }
        let number = self.texts.len() as u32;
        self.texts.push(words.map(str::to_string));
        self.by_text.insert(self.hash(words), number, |_| false);
        number
    }

    /// Learns where words lie; those that no entry has are of no use.
    fn learn(&mut self, names: impl IntoIterator<Item = Words<'static>>) {
        let mut known: Vec<Spot> = Vec::new();
        for words in names {
            let group = self.by_words(&words);
            known.extend(Spot::of(words).filter(|_| group != NO_GROUP).map(|spot| Spot { group, ..spot }));
        }
        self.spots = vec![Spot::EMPTY; (8 * known.len()).next_power_of_two().max(2)];
        for spot in known {
            let mut at = self.slot(&spot);
            while self.spots[at].group != NO_GROUP && !self.spots[at].same_place(&spot) {
                at = (at + 1) & (self.spots.len() - 1);
            }
            self.spots[at] = spot;
        }
    }

    #[inline(always)]
    fn slot(&self, spot: &Spot) -> usize {
        (spot.hash() >> 32) as usize & (self.spots.len() - 1)
    }

    /// The number of a group, or [`NO_GROUP`].
    #[inline(always)]
    fn number(&self, words: Words<'_>) -> u32 {
        if let Some(asked) = Spot::of(words) {
            let mut at = self.slot(&asked);
            while let Some(spot) = self.spots.get(at).filter(|s| s.group != NO_GROUP) {
                step();
                if spot.same_place(&asked) {
                    return spot.group;
                }
                at = (at + 1) & (self.spots.len() - 1);
            }
        }
        self.by_words(&words)
    }

    fn by_words(&self, words: &Words<'_>) -> u32 {
        let is = |n: u32| self.texts.get(n as usize).is_some_and(|t| t.iter().zip(words).all(|(t, w)| t == w));
        self.by_text.find(self.hash(words), is).unwrap_or(NO_GROUP)
    }

    #[inline(always)]
    fn hash(&self, words: &Words<'_>) -> u64 {
        words.iter().fold(self.seed, |hash, word| text(hash, word))
    }
}

/// Words by number; few, so compared one by one.
#[derive(Clone, Debug, Default)]
struct Few(Vec<String>);

impl Few {
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

/// A profile with its entries indexed. Answers exactly what [`Profile::choose`] and [`Profile::lookup`] do, in some tens of ns
/// (docs/placement.md has figures) instead of a time that grows with the profile. Immutable; shared between threads.
#[derive(Clone, Debug)]
pub struct Chooser {
    profile: Profile,
    seed: u64,
    /// Of equal keys the first entry.
    exact: HashSet<Slot, Seeded>,
    groups: Groups,
    /// CPU variants; the first is [`CPU_AUTO`], the usual one.
    variants: Few,
    /// Devices in the profile's order, then others that entries name.
    uids: Few,
    residencies: Few,
    /// Numbers of `always` and `resident`.
    usual: [Option<usize>; 2],
    /// An entry for each leading part of a key: what a call without an entry failed at.
    parts: Table,
    /// Entries that match more than one key, in order; presets have them.
    wild: Vec<u32>,
    /// True if each call has but one entry to ask.
    single: bool,
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

    /// Indexes a profile for calls that mostly name op, family and unit by these very words, as `op::words()` has them: they
    /// are then known by their places in memory and need not be read. The answers are the same without.
    pub fn knowing(profile: Profile, names: impl IntoIterator<Item = [&'static str; 3]>) -> Self {
        // A number of this process, so that no file can be written whose keys all share their hashes.
        let mut chooser = Self::seeded(profile, RandomState::new().hash_one(0u8));
        chooser.groups.learn(names);
        chooser
    }

    fn seeded(profile: Profile, seed: u64) -> Self {
        let n = profile.entries.len();
        let mut c = Chooser {
            seed,
            exact: HashSet::with_capacity_and_hasher(n, Seeded(seed)),
            groups: Groups::new(seed, n),
            variants: Few(vec![CPU_AUTO.to_string()]),
            uids: Few(profile.devices.iter().map(|d| d.uid.clone()).collect()),
            residencies: Few::default(),
            usual: [None; 2],
            parts: Table::new(n * (PARTS - 1)),
            wild: Vec::new(),
            single: false,
            profile: Profile::default(),
        };
        // Numbers of devices are those of the profile's list only while each uid stands there once.
        let unique = c.uids.0.iter().enumerate().all(|(i, uid)| c.uids.find(uid) == Some(i));
        for (i, entry) in profile.entries.iter().enumerate() {
            let Ok(number) = u32::try_from(i) else { break };
            let own = own_key(entry).filter(|_| unique).map(|key| {
                let group = c.groups.add(&[&entry.op, &entry.family, &entry.unit]);
                let packed = Packed::call(group, key.dtype, Some(c.variants.number(&entry.cpu_variant)), key.threads);
                (key, packed.at(c.uids.number(&entry.device), c.residencies.number(&entry.residency)))
            });
            let known = own.filter(|(_, packed)| *packed != Packed::NONE).zip(SmallSends::of(entry));
            let Some(((key, packed), sends)) = known else {
                c.wild.push(number);
                continue;
            };
            let plain = if profile.rule == Rule::Curve { Plain::of(entry) } else { Plain::NEVER };
            c.exact.insert(Slot { key: packed, entry: number, sends, plain });
            let entries = &profile.entries;
            for parts in 1..PARTS {
                let agrees = |e: u32| agrees(&entries[e as usize], &key, parts);
                c.parts.insert(part_hash(seed, &key, parts), number, agrees);
            }
        }
        c.usual = [ALWAYS, RESIDENT].map(|r| c.residencies.find(r));
        c.single = profile.kind != Kind::Preset && profile.devices.len() == 1 && c.wild.is_empty();
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
        let packed = self.packed(call.op, call.family, call.unit, call.cpu_variant, call.dtype, call.threads);
        if self.single && policy == Policy::Automatic {
            return self.choose_plainly(packed, call, usable);
        }
        choose::place(&Hashed { chooser: self, packed }, policy, call, &mut usable)
    }

    /// What [`choose::place`] does where one entry decides, by thresholds in steps that do not branch on what is found: who
    /// asks for many places in turn need not wait for each answer.
    #[inline(always)]
    fn choose_plainly(&self, packed: Packed, call: &Call<'_>, usable: impl FnOnce(usize) -> bool) -> Placed<'_> {
        let only = self.profile.devices.first();
        let none =
            Placed { place: Place::Cpu, device: None, why: Reason::NoOp, entry: None, times: None, assumed: false };
        let (residency, number) = match call.operands {
            Operands::Host => (ALWAYS, self.usual[0]),
            Operands::Device(uid) if only.is_some_and(|d| d.uid == uid) => (RESIDENT, self.usual[1]),
            Operands::Device(_) => return Placed { why: Reason::NoDevice, ..none },
        };
        let key = || call.key(only.map_or("", |d| &d.uid), residency);
        match self.row(packed, Some(0).zip(number), key) {
            Ok(row) => {
                let (place, why) = match self.profile.rule {
                    Rule::Threshold => row.rule(call.features.work),
                    Rule::Curve => row.by_curve(&call.features),
                };
                if place == Place::Gpu && !usable(0) {
                    return none;
                }
                Placed { place, device: only.filter(|_| place == Place::Gpu), why, entry: Some(row.entry), ..none }
            }
            Err(why) => Placed { why, ..none },
        }
    }

    #[inline(always)]
    fn packed(&self, op: &str, family: Option<&str>, unit: &str, variant: &str, dtype: DType, threads: u32) -> Packed {
        // No entry has no family.
        let group = family.map_or(NO_GROUP, |family| self.groups.number([op, family, unit]));
        let variant = if variant == CPU_AUTO { Some(0) } else { self.variants.find(variant) };
        Packed::call(group, dtype, variant, threads)
    }

    /// The profile's answer for one key; see [`Profile::lookup`]. Allocates nothing.
    pub fn lookup(&self, key: &Key<'_>, work: u128) -> Decision<'_> {
        let assumed = self.profile.kind == Kind::Preset;
        let packed = self.packed(key.op, key.family, key.unit, key.cpu_variant, key.dtype, key.threads);
        let at = self.uids.find(key.device_uid).zip(self.residencies.find(key.residency));
        match self.row(packed, at, || *key) {
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
        packed: Packed,
        at: Option<(usize, usize)>,
        key: impl Fn() -> Key<'k>,
    ) -> Result<Row<'_>, Reason> {
        let found = at.and_then(|(device, residency)| self.exact.get(&packed.at(device, residency)));
        if !self.wild.is_empty() {
            let before = found.map_or(u32::MAX, |k| k.entry);
            let mut earlier = self.wild.iter().take_while(|w| **w < before).map(|w| &self.profile.entries[*w as usize]);
            let key = key();
            if let Some(entry) = earlier.find(|e| e.differs(&key).is_none()) {
                return Ok(Row::of(entry));
            }
        }
        match found.and_then(|k| Some((k, self.profile.entries.get(k.entry as usize)?))) {
            Some((k, entry)) => Ok(Row { entry, sends: k.sends.whole(), plain: &k.plain }),
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

/// A call's key with the index.
struct Hashed<'c> {
    chooser: &'c Chooser,
    packed: Packed,
}

impl<'c> Find<'c> for Hashed<'c> {
    fn profile(&self) -> &'c Profile {
        &self.chooser.profile
    }
    #[inline(always)]
    fn find(&self, call: &Call<'_>, device: Option<usize>, residency: &'static str) -> Result<Row<'c>, Reason> {
        let c = self.chooser;
        let number = c.usual[usize::from(residency == RESIDENT)];
        c.row(self.packed, device.zip(number), || {
            let uid = device.and_then(|d| c.profile.devices.get(d)).map_or("", |d| d.uid.as_str());
            call.key(uid, residency)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Features;
    use crate::profile::Verdict;

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
