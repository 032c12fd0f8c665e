//! In which order groups are measured, and how the time is shared out.

use std::time::Duration;

use crate::base::sink::{Cancel, Progress, Sink};
use crate::base::{Clock, Result};
use crate::jobs::look::Looker;
use crate::measure::crossing::{Plan, WITHIN_10};

use super::fits;
use super::job::{Group, Job, More};
use super::states;
use super::sweep::{Depth, Swept};

/// Groups whose samples are in memory together.
pub(super) const BLOCK: usize = 256;

/// Groups that take turns, where the time allows: enough for their turns to lie apart, and few enough for a budget that does not
/// suffice to give some of them all rather than all of them some.
const TOGETHER: usize = 24;

/// Seconds from the end of a turn of a group to its next: what a machine does for some tenths of a second should not be what
/// all its looks find. Measured once, on a virtual machine with two processors (docs/measuring.md).
const APART: f64 = 0.25;

/// So many times counts the time of a group in which no winner changes for sure, once all had their first looks: mostly nobody
/// surely wins its largest size, which is a matter of a few percent and of the dearest calls.
const OPEN: f64 = 4.0;

/// Upper over lower end of an interval that counts as no narrower, and as no wider, when time is shared out for narrower ones.
const WIDTHS: [f64; 2] = [1.1, 1.5];

/// Looks that a group alone is to have time for: a crossing takes about half as many, at least.
const LOOKS: f64 = 200.0;

/// Share of the time after which first verdicts end: one interval that is narrow is worth more than two that are wide.
const FIRST: f64 = 0.3;

/// Share of what is left for verdicts then, in which those that are open or lack larger sizes go on.
const AGAIN: f64 = 0.1;

/// Share of the time that is kept for shapes besides the sweeps, once the verdicts are known.
const SHAPES: f64 = 0.2;

/// Share of what is left for sizes that had no place in a key's share: before wide intervals become narrow ones, and in the end,
/// when only curves that decide little would come after them.
const LARGER: [f64; 2] = [0.3, 0.8];

/// Share of the time for verdicts that building kernels, and what else is done once, may take before no further group begins;
/// unless each key that began still has so many seconds. Keys that began and have no time left know nothing, on a machine that
/// had built nothing before; what they built is there for the next run.
const BUILDING: f64 = 0.5;
/// See [`BUILDING`].
const EACH: f64 = 0.5;

/// Share of the time that is kept for fitting curves, at most, and seconds that a curve takes: three and five times what was
/// measured on two processors (0.84 s for 344 in 120 s, 1.8 s for 172 in far longer).
const FITTING: f64 = 0.02;
/// See [`FITTING`].
const FIT: f64 = 0.05;

/// The time that is left.
pub(super) struct Span<'a> {
    pub(super) clock: &'a dyn Clock,
    pub(super) end: f64,
}

impl Span<'_> {
    pub(super) fn left(&self) -> f64 {
        (self.end - self.clock.now()).max(0.0)
    }

    /// As long as this span and so many seconds, but within another one.
    fn and(&self, seconds: f64, longest: &Self) -> Self {
        Span { end: (self.end + seconds).min(longest.end), ..*self }
    }

    /// Busily, so that looks find the processors as they are where something else looked before: with few keys there is much to
    /// wait for, and with many nothing.
    fn wait_until(&self, time: f64) {
        let wait = time.min(self.end) - self.clock.now();
        self.clock.stay(Duration::from_secs_f64(wait.max(0.0)));
    }
}

/// Calibrates these groups: first every verdict that the time suffices for, then narrow ones, then the shapes that curves
/// rest on.
pub(super) fn calibrate_block(
    job: &mut Job<'_>,
    groups: &[Group<'_>],
    span: &Span<'_>,
    looker: &mut dyn Looker,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<()> {
    let whole = span;
    let keys: usize = groups.iter().map(|g| job.offered(g).len()).sum();
    let fitting = if span.clock.is_virtual() { 0.0 } else { (FITTING * span.left()).min(FIT * keys as f64) };
    let span = &Span { end: span.end - fitting, ..*span };
    let (begin, once_s) = (span.clock.now(), job.once_s);
    let deciding = Span { end: span.end - SHAPES * span.left(), ..*span };
    let first = Span { end: begin + FIRST * span.left(), ..*span };
    let mut all = firsts(job, groups, [&first, &deciding], looker, sink, cancel)?;
    // What is done once, kernels that are built say, takes none of it: after a fresh start of a machine that is most of the time.
    let first = first.and(job.once_s - once_s, &deciding);
    // While none of those may look that have no verdict yet, others narrow theirs.
    let meanwhile = Some(Depth::Near(Plan::in_part(job.cfg.processes, 1)));
    turns(job, Turns { meanwhile, ..Turns::first(&first) }, &first, &mut all, looker, sink, cancel)?;
    let spent = span.clock.now() - begin - (job.once_s - once_s);
    let some = Span { end: span.clock.now() + AGAIN * deciding.left(), ..*span };
    larger(job, (&some, LARGER[0]), meanwhile, &mut all, looker, sink, cancel)?;
    // What the others did not need goes to those that it was not enough for, first ones first.
    let looks: usize = all.iter().map(|(_, swept)| swept.looks).sum();
    let ahead = LOOKS * spent / looks.max(1) as f64;
    let (begin, left) = (span.clock.now(), span.left());
    let share = if left > 0.0 { deciding.left() / left } else { 0.0 };
    let apart = apart(span);
    let shapes = Turns { how: More::Shapes, meanwhile: None, apart, ahead: 0.0 };
    for part in 1..=Plan::PARTS {
        let processes = Plan::in_part(job.cfg.processes, part);
        let narrow = |depth| Turns { how: More::Decide(depth), meanwhile: None, apart, ahead };
        // All within 15 % are worth more than some within 10 %, and those more than some within 5 %.
        let depths = [Depth::Near(processes), Depth::Close(processes), Depth::Full(processes)].map(narrow);
        let span = Span { end: begin + left * part as f64 / Plan::PARTS as f64, ..*span };
        let deciding = Span { end: span.clock.now() + share * span.left(), ..span };
        for depth in depths {
            turns(job, depth, &deciding, &mut all, looker, sink, cancel)?;
        }
        let (mut some, mut others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, s)| s.crosses());
        turns(job, shapes, &span, &mut some, looker, sink, cancel)?;
        some.append(&mut others);
        all = some;
        larger(job, (&span, LARGER[1]), None, &mut all, looker, sink, cancel)?;
        // Where the winner never changes, a curve decides little.
        turns(job, shapes, &span, &mut all, looker, sink, cancel)?;
        for depth in depths {
            turns(job, depth, &span, &mut all, looker, sink, cancel)?;
        }
    }
    let work: Vec<_> = all.iter().map(|(g, s)| Ok((job.samples(g, s)?, s.crosses()))).collect::<Result<_>>()?;
    let (curves, left_out) = fits(work, whole, cancel);
    job.without_curve += left_out;
    states::settle(job);
    for ((group, swept), curves) in all.into_iter().zip(curves) {
        job.judge(group, swept, curves, sink)?;
    }
    Ok(())
}

/// Checks these groups, looks at their sizes and gives them first verdicts, as far as the first span and what is done once suffice;
/// in their order, but that later ones look while those before may not yet. All of them begin within the second span, as far as
/// [`BUILDING`] lets them, and nothing takes longer. Ends when none may look.
fn firsts<'g, 'd>(
    job: &mut Job<'_>,
    groups: &'g [Group<'d>],
    [span, longest]: [&Span<'_>; 2],
    looker: &mut dyn Looker,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Vec<(&'g Group<'d>, Swept)>> {
    let how = More::Decide(Depth::First);
    let (begin, all_of_it, count, once_s) = (span.clock.now(), span.left(), groups.len(), job.once_s);
    let (apart, first) = (apart(span), span);
    let most_once = BUILDING * longest.left();
    let (mut begun, mut keys) = (0, 0);
    let mut all: Vec<(&Group<'_>, Swept)> = Vec::new();
    // Which, and when it may look again.
    let mut waiting: Vec<(usize, f64)> = Vec::new();
    loop {
        let (now, once) = (first.clock.now(), job.once_s - once_s);
        let span = &first.and(once, longest);
        let ready = next_of(&waiting, now);
        let due = begin + once + all_of_it * begun as f64 / count as f64 <= now;
        // Many need less than their share, so each may take twice as much.
        let even = |left: f64| 2.0 * left / (waiting.len() + count - begun).max(1) as f64;
        let most = longest.left();
        let full = once > most_once && most < EACH * keys as f64;
        let over = cancel.raised() || span.left() <= 0.0;
        // Those that have no time are listed as unmeasured.
        let begins = over || full || due || ready.is_none() || waiting.len() < TOGETHER;
        if let Some(group) = groups.get(begun).filter(|_| begins) {
            sink.progress(&at("", group, begun, count));
            let share = if full { 0.0 } else { even(span.left()).max(even(most) / 4.0).min(most) };
            begun += 1;
            if let Some(swept) = job.group(group, (share, most), looker, sink, cancel)? {
                if how.helps(&swept) {
                    waiting.push((all.len(), span.clock.now() + apart));
                }
                keys += job.offered(group).len();
                all.push((group, swept));
            }
            continue;
        }
        if over {
            break;
        }
        match ready {
            Some(place) => {
                let (group, swept) = &mut all[waiting[place].0];
                sink.progress(&at(how.doing(), group, begun - waiting.len(), count));
                job.go_on((*group, how), swept, even(span.left()).min(span.left()), looker, cancel)?;
                match swept.waits {
                    true => waiting[place].1 = span.clock.now() + apart,
                    false => _ = waiting.remove(place),
                }
            }
            None => break,
        }
    }
    job.interrupted |= cancel.raised();
    Ok(all)
}

/// Which of those that wait, in their order, looks next: of the first [`TOGETHER`] whoever may do so for longest, else the first
/// that may.
fn next_of(waiting: &[(usize, f64)], now: f64) -> Option<usize> {
    let ready = |place: &usize| waiting[*place].1 <= now;
    let some = waiting.len().min(TOGETHER);
    let longest = (0..some).filter(ready).min_by(|a, b| waiting[*a].1.total_cmp(&waiting[*b].1));
    longest.or_else(|| (some..waiting.len()).find(ready))
}

/// Larger sizes for this share of the time, and first verdicts with them.
fn larger(
    job: &mut Job<'_>,
    (span, share): (&Span<'_>, f64),
    meanwhile: Option<Depth>,
    all: &mut [(&Group<'_>, Swept)],
    looker: &mut dyn Looker,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<()> {
    let some = Span { end: span.clock.now() + share * span.left(), ..*span };
    let first = Turns { meanwhile, ..Turns::first(&some) };
    turns(job, Turns { how: More::Larger, ..first }, &some, all, looker, sink, cancel)?;
    turns(job, first, span, all, looker, sink, cancel)
}

/// Seconds between the looks of a group: [`APART`], or less where so much time is too short for that. None on a simulated
/// machine, which has no states that pass.
fn apart(span: &Span<'_>) -> f64 {
    if span.clock.is_virtual() { 0.0 } else { APART.min(span.left() / LOOKS) }
}

fn at(what: &str, group: &Group<'_>, done: usize, total: usize) -> Progress {
    Progress {
        doing: format!(
            "{what}{} {} {} on {}",
            group.op.name,
            group.dtype,
            group.family.name,
            group.runner.device().info().id
        ),
        done: done as u64,
        total: Some(total as u64),
    }
}

/// How groups take turns.
#[derive(Clone, Copy)]
struct Turns {
    how: More,
    /// What groups do whose winner changes while none of the others may look: larger sizes hardly change the place of their
    /// calls. `None`: they take turns as the others.
    meanwhile: Option<Depth>,
    /// Seconds between the looks of a group.
    apart: f64,
    /// Seconds that [`TOGETHER`] groups have before the next so many begin.
    ahead: f64,
}

impl Turns {
    /// For first verdicts within a span.
    fn first(span: &Span<'_>) -> Self {
        Turns { how: More::Decide(Depth::First), meanwhile: None, apart: apart(span), ahead: 0.0 }
    }

    /// What a group does, and whether for these turns or, 1, meanwhile.
    fn of(&self, swept: &Swept) -> (u8, More) {
        match self.meanwhile {
            Some(depth) if swept.crosses() => (1, More::Decide(depth)),
            _ => (0, self.how),
        }
    }

    /// Seconds that each group counts as having had before its first turn: the more, the later it comes. Those whose winner
    /// changes come first, in the order in which they were asked for.
    fn handicaps(&self, all: &[(&Group<'_>, Swept)]) -> Vec<f64> {
        let mut handicaps = vec![0.0; all.len()];
        if !self.how.narrows() {
            return handicaps;
        }
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|i| (!all[*i].1.may_narrow(), all[*i].0.number));
        for (place, i) in order.into_iter().enumerate() {
            handicaps[i] = self.ahead * (place / TOGETHER) as f64 + all[i].1.narrowed_s;
        }
        handicaps
    }
}

/// A group that takes turns.
struct Waits {
    /// Which.
    i: usize,
    /// 1 if it looks only while none may for whom the turns are.
    rank: u8,
    how: More,
    /// The time it had.
    had: f64,
    /// How much more of it than others it should have: [`worth`].
    worth: f64,
    /// When it may look again.
    from: f64,
}

/// How much of the time for narrower intervals a group should have beside one that knows its crossings within 10 %: as the
/// square of its widest one. An interval narrows with the root of its time, so those that end with `time / width²` alike have
/// times in proportion to their scatter, which makes the sum of all squares least (Neyman 1934 for samples of strata).
fn worth(how: More, swept: &Swept) -> f64 {
    let width = swept.widest().filter(|_| how.narrows()).map_or(WITHIN_10, |w| w.clamp(WIDTHS[0], WIDTHS[1]));
    (width.ln() / WITHIN_10.ln()).powi(2)
}

/// Which of those that wait looks next: whoever has had the least time, for what it should have, of those that may.
fn next_turn(queue: &[Waits], now: f64) -> Option<usize> {
    let order = |a: &Waits, b: &Waits| a.rank.cmp(&b.rank).then((a.had / a.worth).total_cmp(&(b.had / b.worth)));
    let ready = queue.iter().enumerate().filter(|(_, q)| q.from <= now);
    ready.min_by(|(_, a), (_, b)| order(a, b)).map(|(place, _)| place)
}

/// Groups look one after the other, one look at a time ([`next_turn`]), until none waits any more or the time is up.
fn turns(
    job: &mut Job<'_>,
    turns: Turns,
    span: &Span<'_>,
    all: &mut [(&Group<'_>, Swept)],
    looker: &mut dyn Looker,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<()> {
    let had = turns.handicaps(all);
    let waits = |(i, (_, swept)): (usize, &(&Group<'_>, Swept))| {
        let (rank, how) = turns.of(swept);
        let had = if rank == 0 { had[i] } else { swept.narrowed_s };
        how.helps(swept).then(|| Waits { i, rank, how, had, worth: worth(how, swept), from: 0.0 })
    };
    let mut queue: Vec<Waits> = all.iter().enumerate().filter_map(waits).collect();
    let total = queue.len();
    while span.left() > 0.0 && queue.iter().any(|q| q.rank == 0) && !cancel.raised() {
        let now = span.clock.now();
        let Some(place) = next_turn(&queue, now) else {
            span.wait_until(queue.iter().map(|q| q.from).fold(f64::INFINITY, f64::min));
            continue;
        };
        let one = queue.swap_remove(place);
        let (group, swept) = &mut all[one.i];
        sink.progress(&at(one.how.doing(), group, total - queue.len() - 1, total));
        // Who looks meanwhile takes nothing from the others.
        let beside = queue.iter().filter(|q| q.rank <= one.rank).count();
        let share = (1.5 * span.left() / (beside + 1) as f64).max(turns.ahead).min(span.left());
        job.go_on((*group, one.how), swept, share, looker, cancel)?;
        let end = span.clock.now();
        let narrows = one.how.narrows();
        let counts = if narrows && !swept.may_narrow() { OPEN } else { 1.0 } * (end - now);
        if narrows {
            swept.narrowed_s += counts;
        }
        if swept.waits {
            let worth = worth(one.how, swept);
            queue.push(Waits { had: one.had + counts, worth, from: end + turns.apart, ..one });
        }
    }
    job.interrupted |= cancel.raised();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;
    use crate::base::DType;
    use crate::base::sink::Collect;
    use crate::device::probe::Rig;
    use crate::device::sim;
    use crate::engine::KernelCache;
    use crate::jobs::calibrate::{CalibrateConfig, Calibrated, How, run_with};
    use crate::jobs::look::{Here, Order, Timed};
    use crate::measure::Residency;
    use crate::op::{self, case};
    use crate::profile::{Profile, Verdict};

    /// Builds a kernel for each op, which takes so many seconds.
    struct Builds<'a>(Here<'a>, Arc<dyn Clock>, f64, HashSet<&'static str>);

    impl Looker for Builds<'_> {
        fn look(&mut self, order: &Order, process: usize, cancel: &Cancel) -> Result<Option<Timed>> {
            let builds = self.3.insert(case::parse(&order.case)?.op);
            let once_s = if builds { self.2 } else { 0.0 };
            self.1.sleep(Duration::from_secs_f64(once_s));
            let timed = self.0.look(order, process, cancel)?;
            Ok(timed.map(|t| Timed { once_s: t.once_s + once_s, ..t }))
        }
    }

    /// All f32 ops of tier 1 within two seconds, where a kernel takes so many to be built. Nothing is computed.
    fn building(each_s: f64) -> Calibrated {
        let seconds = Duration::from_secs(2);
        calibrated(seconds, |here, clock| Box::new(Builds(here, clock, each_s, HashSet::new())))
    }

    /// The same by whoever looks.
    fn calibrated(
        budget: Duration,
        looker: impl for<'a> Fn(Here<'a>, Arc<dyn Clock>) -> Box<dyn Looker + 'a>,
    ) -> Calibrated {
        let (cpu, gpu) = sim::open_spec(sim::spec("laptop").unwrap(), sim::Compute::None).unwrap();
        let clock = cpu.clock();
        let rig = Rig { devices: vec![gpu], cpu, absent: Vec::new() };
        let cfg = CalibrateConfig {
            ops: op::all().filter(|op| op.tier == 1).collect(),
            dtypes: vec![DType::F32],
            residencies: vec![Residency::Always, Residency::Resident],
            cpu_variant: None,
            margin: 1.1,
            budget,
            range: None,
            allow_software: false,
            seed: 1,
            processes: 5,
            earlier: None,
            kernels: KernelCache::off(),
            states: Vec::new(),
            telemetry: crate::device::telemetry::Telemetry::cards,
        };
        let here = Here::new(&[&rig], None, &cfg.kernels);
        let mut looker = looker(here, clock);
        let how = How { study: true, ..How::default() };
        run_with(&cfg, &rig, looker.as_mut(), how, &mut Collect::default(), &Cancel::new()).unwrap()
    }

    /// On a slow machine that had built nothing before, 78 of 344 keys were in no list, and two minutes found 13 crossings. Where all
    /// keys began nevertheless, 48 that did had no verdict here.
    #[test]
    fn where_building_takes_long_fewer_keys_begin_and_all_are_listed() {
        struct Seen {
            listed: usize,
            began: usize,
            decided: usize,
            /// Left out with that reason.
            built: usize,
            noted: bool,
        }
        let [at_once, some, few, none] = [0.0, 0.02, 0.06, 10.0].map(|each_s| {
            let found = building(each_s);
            let without = found.records.iter().filter(|r| r.verdict == Verdict::Unmeasured.name());
            assert_eq!(without.clone().count() as u64, found.unmeasured, "{each_s}");
            let listed = found.records.len();
            Seen {
                listed,
                began: listed - found.unmeasured as usize,
                decided: found.decided(),
                built: without.filter(|r| r.reason.contains("building kernels")).count(),
                noted: found.profile.notes.iter().any(|n| n.contains("building kernels")),
            }
        });
        for seen in [&some, &few] {
            let Seen { listed, began, decided, built, noted } = *seen;
            assert_eq!(listed, at_once.listed);
            let most = 4 * decided >= 3 * began;
            assert!(built > 0 && noted && most, "{began} began, {decided} decided, {built} left out");
        }
        assert!(at_once.built == 0 && !at_once.noted && some.began > few.began && few.began > 0);
        assert_eq!((none.listed, none.decided), (at_once.listed, 0), "the first one takes all of it");
    }

    /// Every third look is disturbed, or none.
    struct Disturbs<'a>(Here<'a>, bool, usize);

    impl Looker for Disturbs<'_> {
        fn look(&mut self, order: &Order, process: usize, cancel: &Cancel) -> Result<Option<Timed>> {
            self.2 += 1;
            let disturbed = self.1 && self.2.is_multiple_of(3);
            Ok(self.0.look(order, process, cancel)?.map(|t| Timed { disturbed, ..t }))
        }
    }

    #[test]
    fn what_disturbs_a_machine_is_told() {
        let [quiet, shared] = [false, true].map(|disturbs| {
            calibrated(Duration::from_millis(200), |here, _| Box::new(Disturbs(here, disturbs, 0))).profile
        });
        let said = |p: &Profile| p.notes.iter().filter(|n| n.contains("in 33 % of the looks")).count();
        let share = |p: &Profile| p.host.as_ref().unwrap().disturbed;
        assert_eq!((share(&quiet), said(&quiet)), (None, 0), "simulated time does not pass with ours");
        assert!(share(&shared).is_some_and(|s| (s - 1.0 / 3.0).abs() < 0.002) && said(&shared) == 1, "{shared:?}");
    }

    /// First ones come first, none before its time, and those that take turns do so evenly.
    #[test]
    fn who_waits_longest_of_the_first_ones_is_next() {
        assert_eq!(next_of(&[], 1.0), None);
        assert_eq!(next_of(&[(0, 1.5), (1, 1.2)], 1.0), None, "not yet");
        assert_eq!(next_of(&[(0, 0.9), (1, 0.3), (2, 1.2)], 1.0), Some(1));
        let with = |first: f64| -> Vec<(usize, f64)> {
            (0..TOGETHER + 3).map(|i| (i, if i < TOGETHER { first + 0.01 * i as f64 } else { 0.1 })).collect()
        };
        assert_eq!(next_of(&with(0.2), 1.0), Some(0), "later ones waited longer, and wait on");
        assert_eq!(next_of(&with(2.0), 1.0), Some(TOGETHER), "unless none of the first may look");
    }

    /// Of two minutes a sixth of the crossings had no more looks than those that were known three times as closely.
    #[test]
    fn wide_intervals_have_more_of_the_time() {
        use crate::measure::crossing::Outcome;
        let crossing =
            |high| Swept::knowing(Outcome::Crossing { size: 110, ci: [100, high], stake: 1.1, without: None });
        let near = More::Decide(Depth::Near(6));
        let of = |high| worth(near, &crossing(high));
        assert_eq!((of(121), worth(near, &Swept::knowing(Outcome::Never))), (1.0, 1.0));
        assert!((of(146) / 4.0 - 1.0).abs() < 0.02, "twice as wide, in the logarithm: {}", of(146));
        assert_eq!((of(101), of(900)), (of(110), of(150)), "no more than a few times as much, nor as little");
        assert_eq!(worth(More::Shapes, &crossing(146)), 1.0, "a curve does not make an interval narrower");
        let waits = |i, rank, had, high, from| {
            let worth = of(high);
            Waits { i, rank, how: near, had, worth, from }
        };
        let queue = |had, from, rank| [waits(0, 0, 1.0, 121, 0.0), waits(1, rank, had, 146, from)];
        let next = |had, from, rank| next_turn(&queue(had, from, rank), 1.0);
        assert_eq!((next(3.8, 0.0, 0), next(4.2, 0.0, 0)), (Some(1), Some(0)));
        assert_eq!((next(0.0, 1.5, 0), next(0.0, 0.0, 1)), (Some(0), Some(0)), "not yet, and not before others");
        assert_eq!(next_turn(&queue(0.0, 1.5, 0)[1..], 1.0), None);
    }

    /// A clock that never sleeps, and says how long it was stayed with.
    #[derive(Default)]
    struct Awake(std::sync::Mutex<Vec<f64>>);

    impl Clock for Awake {
        fn now(&self) -> f64 {
            10.0
        }
        fn sleep(&self, _: Duration) {
            panic!("processors fall idle");
        }
        fn stay(&self, d: Duration) {
            self.0.lock().unwrap().push(d.as_secs_f64());
        }
    }

    /// With few keys, half of a calibration is waiting; copies to PoCL took half as long after that as after other looks.
    #[test]
    fn waiting_leaves_no_processor_idle() {
        let clock = Awake::default();
        let span = Span { clock: &clock, end: 10.5 };
        [10.25, 11.0, 9.0].iter().for_each(|time| span.wait_until(*time));
        assert_eq!(*clock.0.lock().unwrap(), [0.25, 0.5, 0.0]);
    }

    /// Ten seconds of 120 had been waited away while crossings were wide.
    #[test]
    fn those_that_cross_narrow_while_the_others_may_not_look() {
        use crate::measure::crossing::Outcome;
        let crossing = Outcome::Crossing { size: 5, ci: [4, 6], stake: 1.1, without: None };
        let [crosses, never] = [crossing, Outcome::Never].map(Swept::knowing);
        let near = Depth::Near(6);
        let with = |meanwhile| Turns { how: More::Larger, meanwhile, apart: 0.25, ahead: 0.0 };
        assert_eq!(with(Some(near)).of(&crosses), (1, More::Decide(near)));
        for (turns, swept) in [(Some(near), &never), (None, &crosses), (None, &never)] {
            assert_eq!(with(turns).of(swept), (0, More::Larger));
        }
    }
}
