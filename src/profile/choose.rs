//! Where a call runs, by a profile alone: policies, and the cheapest of several devices.
//!
//! [`Profile::choose`] reads the entries one by one; [`Chooser`](super::Chooser) finds them by hash and answers the same.
//! Both are pure, total and allocate nothing. Not here: whether a device is there or has a kernel (`engine`).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::base::{Code, DType, Error, Features, MOST_DIMS};

use super::model::{self, Plain, Times};
use super::{CPU_AUTO, Decision, Entry, Key, Kind, Place, Profile, ProfileDevice, Reason, Verdict};

/// Residency of operands that cross the bus in every call.
pub const ALWAYS: &str = "always";
/// Residency of operands that stay on the device.
pub const RESIDENT: &str = "resident";

/// What decides where both a curve and a threshold could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Work from the threshold on goes to the device.
    #[default]
    Threshold,
    /// The side with the shorter predicted time, where the entry has a curve.
    Curve,
}

impl Rule {
    /// The word in profiles.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Threshold => "threshold",
            Rule::Curve => "curve",
        }
    }

    // By reference, as serde asks.
    pub(super) fn is_threshold(&self) -> bool {
        *self == Rule::Threshold
    }
}

/// Who decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The profile's rule: its curves where `rule = "curve"` and the entry has one for such shapes, else its thresholds.
    /// Operands on the host: the entries `always` of every device. Operands on a device: the entry
    /// `resident` of that device alone. Of several devices that win, the one with the least predicted time.
    #[default]
    Automatic,
    /// A device whatever the profile says: the one that holds the operands, else the one with the least predicted time,
    /// else the profile's first.
    ForceGpu,
    /// The CPU.
    ForceCpu,
    /// Where the operands are. On a device only if the profile has measured the call there and found it right.
    MinimizeTransfers,
    /// The least predicted time, without margin: on the host's side plus the copy of the inputs off the device that holds
    /// them. What cannot be predicted is not chosen.
    CostBased,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 5] =
        [Policy::Automatic, Policy::ForceGpu, Policy::ForceCpu, Policy::MinimizeTransfers, Policy::CostBased];

    /// The word on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Automatic => "automatic",
            Policy::ForceGpu => "force-gpu",
            Policy::ForceCpu => "force-cpu",
            Policy::MinimizeTransfers => "minimize-transfers",
            Policy::CostBased => "cost-based",
        }
    }
}

impl FromStr for Policy {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        let known = || Policy::ALL.map(Policy::name).join(" ");
        Policy::ALL
            .into_iter()
            .find(|p| p.name() == s)
            .ok_or_else(|| Error::new(Code::BadArgument, format!("unknown placement '{s}'; known: {}", known())))
    }
}

/// Where the operands of a call are. Operands in several places count as on the host: what is known then is the cost of
/// moving all of them, which is no less than that of moving some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands<'a> {
    /// In the host's memory.
    Host,
    /// On the device with this uid.
    Device(&'a str),
}

/// A call to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Op name, or the name of a function of one's own.
    pub op: &'a str,
    /// Dtype.
    pub dtype: DType,
    /// Shape family; `None` is a shape outside every family.
    pub family: Option<&'a str>,
    /// Unit of the work.
    pub unit: &'a str,
    /// Work, cost and sizes.
    pub features: Features,
    /// Where the operands are.
    pub operands: Operands<'a>,
    /// Threads of the CPU that would run it otherwise.
    pub threads: u32,
    /// Kernel of that CPU, [`CPU_AUTO`] if none was named.
    pub cpu_variant: &'a str,
}

impl<'a> Call<'a> {
    /// Family of functions that `calibrate::measure` timed.
    pub const OWN_FAMILY: &'static str = "all";

    /// A call of a function of one's own (`calibrate::measure`): f32, one thread, operands on the host, `size` in `unit`.
    /// A unit that does not exist has no work, and no entry has it.
    pub fn own(name: &'a str, unit: &'a str, size: u64) -> Self {
        let work = super::work_of(unit, size).unwrap_or(0);
        let mut dims = [0; MOST_DIMS];
        dims[0] = size;
        Call {
            op: name,
            dtype: DType::F32,
            family: Some(Self::OWN_FAMILY),
            unit,
            features: Features { work, dims, ..Features::default() },
            operands: Operands::Host,
            threads: 1,
            cpu_variant: CPU_AUTO,
        }
    }

    /// The key of this call on a device.
    pub(super) fn key<'k>(&self, device_uid: &'k str, residency: &'k str) -> Key<'k>
    where
        'a: 'k,
    {
        Key {
            op: self.op,
            dtype: self.dtype,
            family: self.family,
            unit: self.unit,
            device_uid,
            residency,
            threads: self.threads,
            cpu_variant: self.cpu_variant,
        }
    }
}

/// The answer of [`Profile::choose`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed<'p> {
    /// CPU or GPU.
    pub place: Place,
    /// The device. `None` for the CPU, and for presets, which mean any GPU.
    pub device: Option<&'p ProfileDevice>,
    /// Why.
    pub why: Reason,
    /// The entry that decided, if one did.
    pub entry: Option<&'p Entry>,
    /// What was predicted of the device, where the policy asked.
    pub times: Option<Times>,
    /// True if the numbers are assumed (a preset).
    pub assumed: bool,
}

/// An entry's threshold rule, worked out beforehand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sends {
    /// [`Entry::threshold_work`]; 0 where the amount of work changes nothing.
    least: u128,
    /// Why work below `least` stays on the CPU.
    below: Reason,
    /// The reason for the others.
    reached: Reason,
}

impl Sends {
    pub(super) fn of(entry: &Entry) -> Self {
        let (least, verdict) = (entry.threshold_work(), entry.verdict);
        let whatever = |why| (0, why, why);
        let (least, below, reached) = match (verdict, least) {
            (Verdict::Never, _) => whatever(Reason::Never),
            (Verdict::NonMonotone, _) => whatever(Reason::NonMonotone),
            (Verdict::Inconclusive, _) => whatever(Reason::Inconclusive),
            (Verdict::Unsafe, _) => whatever(Reason::Unsafe),
            (_, None) => whatever(Reason::Unmeasured),
            (Verdict::Always, Some(0)) => whatever(Reason::Always),
            (_, Some(least)) => (least, Reason::BelowThreshold, Reason::ReachesThreshold),
        };
        Sends { least, below, reached }
    }

    #[inline(always)]
    fn rule(&self, work: u128) -> (Place, Reason) {
        let why = if work >= self.least { self.reached } else { self.below };
        let to_device = matches!(why, Reason::Always | Reason::ReachesThreshold);
        (if to_device { Place::Gpu } else { Place::Cpu }, why)
    }
}

/// The same in few bytes, at any address.
#[derive(Clone, Copy, Debug)]
pub(super) struct SmallSends {
    least: [u8; 8],
    below: Reason,
    reached: Reason,
}

impl SmallSends {
    /// `None` where the least work has more than 64 bits.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        let Sends { least, below, reached } = Sends::of(entry);
        Some(SmallSends { least: u64::try_from(least).ok()?.to_le_bytes(), below, reached })
    }

    #[inline(always)]
    pub(super) fn whole(self) -> Sends {
        Sends { least: u64::from_le_bytes(self.least).into(), below: self.below, reached: self.reached }
    }
}

/// An entry with what a lookup needs of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'p> {
    pub(super) entry: &'p Entry,
    pub(super) sends: Sends,
    /// Bounds of its curve, or [`Plain::NEVER`].
    pub(super) plain: &'p Plain,
}

impl<'p> Row<'p> {
    pub(super) fn of(entry: &'p Entry) -> Self {
        Row { entry, sends: Sends::of(entry), plain: &Plain::NEVER }
    }

    /// The profile's rule.
    pub(super) fn rule(&self, work: u128) -> (Place, Reason) {
        self.sends.rule(work)
    }

    /// The profile's rule where that is its curves.
    #[inline(always)]
    pub(super) fn by_curve(&self, call: &Features) -> (Place, Reason) {
        let says = self.plain.says(call);
        let wins = if says.plain {
            says.device_wins
        } else if let Some(wins) = model::device_wins(self.entry, call) {
            wins
        } else {
            // Without a curve, or for shapes that it does not cover, the threshold.
            return self.rule(call.work);
        };
        if wins { (Place::Gpu, Reason::PredictedFaster) } else { (Place::Cpu, Reason::PredictedSlower) }
    }

    /// Whether it sends a call to its device by itself, and why, or why not.
    fn automatic(&self, rule: Rule, call: &Features) -> Result<Reason, Reason> {
        let (place, why) = match rule {
            Rule::Curve => self.by_curve(call),
            Rule::Threshold => self.rule(call.work),
        };
        if place == Place::Gpu { Ok(why) } else { Err(why) }
    }

    /// Why the device may not be used at all, if so: its results were wrong, or nobody has looked.
    fn doubt(&self) -> Option<Reason> {
        match self.entry.verdict {
            Verdict::Unsafe => Some(Reason::Unsafe),
            Verdict::Unmeasured => Some(Reason::Unmeasured),
            _ => None,
        }
    }
}

impl Entry {
    /// Whether a profile with this rule sends a call with this entry's key to its device, were it the only one there
    /// ([`Policy::Automatic`]).
    pub fn sends(&self, rule: Rule, call: &Features) -> bool {
        Row::of(self).automatic(rule, call).is_ok()
    }

    /// Whether some call with this key may go to the device by a threshold, or by what else this policy goes by. True, too,
    /// where a curve never wins: that is only known of one call.
    pub(super) fn may_send(&self, rule: Rule, policy: Policy) -> bool {
        let by_more = match policy {
            Policy::Automatic => rule == Rule::Curve && self.curve.is_some(),
            Policy::CostBased => self.curve.is_some() || self.points.len() > 1,
            Policy::MinimizeTransfers | Policy::ForceGpu => true,
            Policy::ForceCpu => false,
        };
        self.threshold_work().is_some() || (by_more && Row::of(self).doubt().is_none())
    }
}

/// Whoever finds entries: one by one, or by hash.
pub(super) trait Find<'p> {
    fn profile(&self) -> &'p Profile;
    /// The entry of a device of the profile, by number, or of presets (`None`).
    fn find(&self, call: &Call<'_>, device: Option<usize>, residency: &'static str) -> Result<Row<'p>, Reason>;
}

/// A device that could take the call.
struct Candidate<'p> {
    device: usize,
    row: Option<Row<'p>>,
    why: Reason,
    times: Option<Times>,
    /// What it is chosen by.
    seconds: f64,
}

/// Decides. `usable` is asked of each device that would be chosen but for a cheaper one.
pub(super) fn place<'p>(
    find: &impl Find<'p>,
    policy: Policy,
    call: &Call<'_>,
    usable: &mut impl FnMut(usize) -> bool,
) -> Placed<'p> {
    let profile = find.profile();
    let assumed = profile.kind == Kind::Preset;
    let cpu = |why: Reason, entry: Option<&'p Entry>| Placed {
        place: Place::Cpu,
        device: None,
        why,
        entry,
        times: None,
        assumed,
    };
    if policy == Policy::ForceCpu {
        return cpu(Reason::Forced, None);
    }
    if assumed {
        return preset(find, policy, call);
    }
    let home = match call.operands {
        Operands::Host => None,
        Operands::Device(uid) => match profile.devices.iter().position(|d| d.uid == uid) {
            None if policy != Policy::ForceGpu => return cpu(Reason::NoDevice, None),
            other => other,
        },
    };
    if policy == Policy::MinimizeTransfers && home.is_none() {
        return cpu(Reason::OperandsThere, None);
    }
    // The entry that came nearest to a GPU is the one worth telling.
    let mut nearest = (Reason::NoOp, None);
    let mut best: Option<Candidate<'p>> = None;
    let winners = match (policy, home) {
        (Policy::CostBased, _) | (_, None) => 0..profile.devices.len(),
        (_, Some(home)) => home..home + 1,
    };
    for device in winners {
        let residency = if home == Some(device) { RESIDENT } else { ALWAYS };
        let found = find.find(call, Some(device), residency);
        let (row, said) = match found {
            Ok(row) => (Some(row), says(profile, policy, &row, call)),
            Err(why) => (None, if policy == Policy::ForceGpu { Ok(Reason::Forced) } else { Err(why) }),
        };
        let mut candidate = match said {
            Ok(why) => Candidate { device, row, why, times: None, seconds: f64::INFINITY },
            Err(why) => {
                if why >= nearest.0 {
                    nearest = (why, row.map(|r| r.entry));
                }
                continue;
            }
        };
        // One device that wins needs no prediction.
        if (policy == Policy::CostBased || profile.devices.len() > 1)
            && let Some(row) = &row
            && let Some(times) = model::predict(row.entry, &call.features)
        {
            // Off the device that holds the operands: to the CPU, or by way of the host to another device.
            let away = home.map_or(0.0, |home| away(profile, home, call));
            let other = if home == Some(device) { 0.0 } else { away };
            candidate.times = Some(Times { cpu_s: times.cpu_s + away, device_s: times.device_s + other });
            candidate.seconds = times.device_s + other;
        }
        if policy == Policy::CostBased {
            let lost = match candidate.times {
                None => Some(Reason::NoPrediction),
                Some(t) if t.device_s < t.cpu_s => None,
                Some(_) => Some(Reason::PredictedSlower),
            };
            if let Some(why) = lost {
                if why >= nearest.0 {
                    nearest = (why, row.map(|r| r.entry));
                }
                continue;
            }
        }
        if best.as_ref().is_none_or(|b| candidate.seconds < b.seconds) && usable(device) {
            best = Some(candidate);
        }
    }
    match best {
        Some(c) => Placed {
            place: Place::Gpu,
            device: profile.devices.get(c.device),
            why: c.why,
            entry: c.row.map(|r| r.entry),
            times: c.times,
            assumed,
        },
        None if policy == Policy::ForceGpu => cpu(Reason::NoGpu, None),
        None => cpu(nearest.0, nearest.1),
    }
}

/// Whether an entry lets its device take part, and why, or why not.
fn says(profile: &Profile, policy: Policy, row: &Row<'_>, call: &Call<'_>) -> Result<Reason, Reason> {
    match policy {
        Policy::Automatic => row.automatic(profile.rule, &call.features),
        Policy::ForceGpu => Ok(Reason::Forced),
        Policy::ForceCpu => Err(Reason::Forced),
        Policy::MinimizeTransfers => row.doubt().map_or(Ok(Reason::OperandsThere), Err),
        Policy::CostBased => row.doubt().map_or(Ok(Reason::PredictedFaster), Err),
    }
}

/// A preset has one answer for every GPU and predicts nothing.
fn preset<'p>(find: &impl Find<'p>, policy: Policy, call: &Call<'_>) -> Placed<'p> {
    let answer = |place, why, entry| Placed { place, device: None, why, entry, times: None, assumed: true };
    let residency = if call.operands == Operands::Host { ALWAYS } else { RESIDENT };
    if policy == Policy::ForceGpu {
        return answer(Place::Gpu, Reason::Forced, None);
    }
    if policy == Policy::MinimizeTransfers && call.operands == Operands::Host {
        return answer(Place::Cpu, Reason::OperandsThere, None);
    }
    match find.find(call, None, residency) {
        Err(why) => answer(Place::Cpu, why, None),
        Ok(row) => match policy {
            Policy::CostBased => answer(Place::Cpu, Reason::NoPrediction, Some(row.entry)),
            // Nobody has looked at the results of a preset's devices.
            Policy::MinimizeTransfers => answer(Place::Cpu, Reason::Unmeasured, Some(row.entry)),
            Policy::Automatic | Policy::ForceGpu | Policy::ForceCpu => {
                let (place, why) = row.rule(call.features.work);
                answer(place, why, Some(row.entry))
            }
        },
    }
}

/// Seconds to copy the inputs off a device; without a transfer model nothing is known, and nothing is charged.
fn away(profile: &Profile, home: usize, call: &Call<'_>) -> f64 {
    let uid = profile.devices.get(home).map(|d| d.uid.as_str());
    let model = profile.transfers.iter().find(|t| Some(t.device.as_str()) == uid);
    model.map_or(0.0, |t| t.d2h_latency_s + call.features.cost.read as f64 / t.d2h_bytes_per_s)
}

/// Finds entries one by one.
struct Scan<'p>(&'p Profile);

impl<'p> Find<'p> for Scan<'p> {
    fn profile(&self) -> &'p Profile {
        self.0
    }
    fn find(&self, call: &Call<'_>, device: Option<usize>, residency: &'static str) -> Result<Row<'p>, Reason> {
        let uid = device.and_then(|d| self.0.devices.get(d)).map_or("", |d| d.uid.as_str());
        let mut nearest = Reason::NoOp;
        for entry in &self.0.entries {
            match entry.differs(&call.key(uid, residency)) {
                Some(reason) => nearest = nearest.max(reason),
                None => return Ok(Row::of(entry)),
            }
        }
        Err(nearest)
    }
}

impl Entry {
    /// How far the entry matches a key: the first part that differs, or `None` if all agree. `any` matches anything.
    pub(super) fn differs(&self, key: &Key<'_>) -> Option<Reason> {
        let same = |mine: &str, asked: &str| mine == super::ANY || mine == asked;
        if self.op != key.op {
            Some(Reason::NoOp)
        } else if !same(&self.dtype, key.dtype.name()) {
            Some(Reason::NoDtype)
        } else if self.family != super::ANY && key.family != Some(self.family.as_str()) {
            Some(Reason::NoFamily)
        } else if !same(&self.device, key.device_uid) {
            Some(Reason::NoDevice)
        } else if !same(&self.residency, key.residency) {
            Some(Reason::NoResidency)
        } else if self.threads != 0 && self.threads != key.threads {
            Some(Reason::OtherThreads)
        } else if !same(&self.cpu_variant, key.cpu_variant) {
            Some(Reason::OtherCpuVariant)
        } else if self.unit != key.unit {
            Some(Reason::OtherUnit)
        } else {
            None
        }
    }
}

impl Profile {
    /// Where a call with this key and this much work goes, by the profile's rule. Reads the entries one by one and allocates
    /// nothing; nothing is borrowed from another key.
    pub fn lookup(&self, key: &Key<'_>, work: u128) -> Decision<'_> {
        let assumed = self.kind == Kind::Preset;
        let mut nearest = Reason::NoOp;
        for entry in &self.entries {
            if let Some(reason) = entry.differs(key) {
                nearest = nearest.max(reason);
                continue;
            }
            let (place, why) = Row::of(entry).rule(work);
            return Decision { place, why, entry: Some(entry), assumed };
        }
        Decision { place: Place::Cpu, why: nearest, entry: None, assumed }
    }

    /// Where a call goes, without an engine. Reads the entries one by one; for many calls make a
    /// [`Chooser`](super::Chooser). Pure, total, allocates nothing; whether the device is there is the caller's matter.
    ///
    /// ```
    /// use gpuctl::profile::{Call, Place, Policy, Profile, load};
    ///
    /// # fn main() -> gpuctl::base::Result<()> {
    /// let profile: Profile = load("preset:always-cpu")?.profile;
    /// let placed = profile.choose(Policy::Automatic, &Call::own("blur", "elements", 1_000_000));
    /// assert_eq!(placed.place, Place::Cpu);
    /// # Ok(())
    /// # }
    /// ```
    pub fn choose(&self, policy: Policy, call: &Call<'_>) -> Placed<'_> {
        place(&Scan(self), policy, call, &mut |_| true)
    }
}
