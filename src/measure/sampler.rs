//! Runs subjects in turn and reads the clock.

use std::sync::Arc;

use crate::base::sink::Cancel;
use crate::base::{Clock, Code, DeviceInfo, Error, Result, stats};

use super::stop::{REGION_S, SINGLES, StopRule, Verdict, batch_for};

/// What timed regions are called in a trace: samples, the calls before the first one, and calls whose phases are apart.
pub const SAMPLE: &str = "sample";
const WARM_UP: &str = "warm-up";
/// See [`SAMPLE`].
pub const PHASES: &str = "phases";

/// Something that can be timed.
pub trait Subject {
    /// Does it `calls` times and returns when the last one is complete.
    fn run(&mut self, calls: u64) -> Result<()>;
    /// Calls that one of these stands for; seconds per call are shared among them.
    fn share(&self) -> u64 {
        1
    }
    /// The clock its time passes on.
    fn clock(&self) -> Arc<dyn Clock>;
    /// Now, on the clock of a trace, if there is one.
    fn traced(&self) -> Option<f64> {
        None
    }
    /// Tells a trace of a timed region that ends now: what it was for, its calls, its begin and the seconds that were measured.
    fn told(&self, _remark: &'static str, _calls: u64, _begin: f64, _seconds: f64) {}
    /// What must happen before each timed region and is not timed; complete at return.
    fn before(&mut self) -> Result<()> {
        Ok(())
    }
    /// True if each sample is one call, however short: what [`Subject::before`] does holds for the first one only.
    fn one_call(&self) -> bool {
        false
    }
    /// The device, if it may be a card that another API shows as well.
    fn device(&self) -> Option<&DeviceInfo> {
        None
    }
    /// Takes the card back after another API's device has used it, untimed; complete at return.
    fn take_back(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Samples of one subject.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Seconds per call, in order.
    pub samples: Vec<f64>,
    /// Calls per sample.
    pub batch: u64,
    /// Calls in all, those before the first sample among them.
    pub calls: u64,
}

impl Series {
    /// Median seconds per call.
    pub fn median(&self) -> f64 {
        stats::median(&self.samples)
    }
}

/// Which subjects must take their card back before they are timed.
///
/// Two APIs have a context each on one card, and the first work after another context's waits for the switch: on an H200 140 us
/// for CUDA after OpenCL, 200 us for Vulkan, whatever the work. A program that uses one API never pays that, so no sample may.
struct Taken {
    /// Of each subject those on the same card by another API.
    others: Vec<Vec<usize>>,
    taken: Vec<bool>,
}

impl Taken {
    fn of(subjects: &[&mut dyn Subject]) -> Self {
        let infos: Vec<Option<&DeviceInfo>> = subjects.iter().map(|s| s.device()).collect();
        let shares = |a: &DeviceInfo, b: &DeviceInfo| a.id != b.id && a.same_card(b);
        let of = |a: &Option<&DeviceInfo>| {
            let beside = infos.iter().enumerate().filter(|(_, b)| a.zip(**b).is_some_and(|(a, b)| shares(a, b)));
            beside.map(|(i, _)| i).collect()
        };
        Taken { others: infos.iter().map(of).collect(), taken: vec![false; subjects.len()] }
    }

    /// Before subject `i` runs: whether it must take the card back.
    fn begins(&mut self, i: usize) -> bool {
        for other in &self.others[i] {
            self.taken[*other] = true;
        }
        std::mem::take(&mut self.taken[i])
    }
}

/// Samples all subjects interleaved, one sample each per round, in alternating order, until the rule says stop.
///
/// Each subject is warmed up first; the calls per sample are chosen there. One whose card another API's device has used since
/// takes it back before its sample, untimed. An interrupted run returns what it has, if every subject has at least one sample;
/// otherwise `Cancelled`.
pub fn sample(subjects: &mut [&mut dyn Subject], rule: &StopRule, cancel: &Cancel) -> Result<Vec<Series>> {
    sample_between(subjects, rule, cancel, &mut || ())
}

/// The same with something that happens after each sample, and after a card was taken back, outside of what is timed.
pub fn sample_between(
    subjects: &mut [&mut dyn Subject],
    rule: &StopRule,
    cancel: &Cancel,
    between: &mut dyn FnMut(),
) -> Result<Vec<Series>> {
    let Some(clock) = subjects.first().map(|s| s.clock()) else { return Ok(Vec::new()) };
    let begin = clock.now();
    let mut series = vec![Series::default(); subjects.len()];
    let mut cards = Taken::of(subjects);
    for (i, (s, out)) in subjects.iter_mut().zip(&mut series).enumerate() {
        cards.begins(i);
        (out.batch, out.calls) = warm_up(*s, rule)?;
        if cancel.raised() {
            return Err(Error::new(Code::Cancelled, "interrupted before the first sample"));
        }
    }
    let begin_samples = clock.now();
    loop {
        let round = series.iter().map(|s| s.samples.len()).min().unwrap_or(0);
        let forward = round % 2 == 0;
        for i in 0..subjects.len() {
            let i = if forward { i } else { subjects.len() - 1 - i };
            let batch = series[i].batch;
            let calls = batch * subjects[i].share();
            if cards.begins(i) {
                subjects[i].take_back()?;
                between();
            }
            let seconds = time(subjects[i], batch, SAMPLE)?;
            series[i].samples.push(seconds / calls as f64);
            series[i].calls += calls;
            between();
        }
        let views: Vec<&[f64]> = series.iter().map(|s| s.samples.as_slice()).collect();
        // The soft limit counts sampling alone, the budget everything.
        let soft = StopRule { budget_s: rule.budget_s - (begin_samples - begin), ..*rule };
        if soft.decide(&views, clock.now() - begin_samples) != Verdict::Continue || cancel.raised() {
            return Ok(series);
        }
    }
}

fn time(s: &mut dyn Subject, calls: u64, remark: &'static str) -> Result<f64> {
    s.before()?;
    let clock = s.clock();
    let begin = s.traced();
    let start = clock.now();
    s.run(calls)?;
    let seconds = clock.now() - start;
    if let Some(begin) = begin {
        s.told(remark, calls * s.share(), begin, seconds);
    }
    Ok(seconds)
}

/// Runs until a call is no longer faster than the one before, at most five times or a tenth of the budget; then sizes
/// the batch. Gives it and the number of calls.
fn warm_up(s: &mut dyn Subject, rule: &StopRule) -> Result<(u64, u64)> {
    let mut best = time(s, 1, WARM_UP)?;
    let mut spent = best;
    let mut calls = 1;
    for _ in 0..4 {
        if spent > rule.budget_s / 10.0 {
            break;
        }
        let t = time(s, 1, WARM_UP)?;
        calls += 1;
        spent += t;
        if t > 0.95 * best {
            best = best.min(t);
            break;
        }
        best = t;
    }
    let region_s = REGION_S.max(rule.region_s.min(SINGLES * best));
    let batch = if s.one_call() { 1 } else { batch_for(best, region_s) };
    if batch > 1 {
        // One batch more settles caches and the estimate of a very short call.
        let per_call = time(s, batch, WARM_UP)? / batch as f64;
        return Ok((batch_for(per_call, region_s), calls + batch));
    }
    Ok((batch, calls))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::VirtualClock;

    /// Takes a scripted time per call on a virtual clock.
    struct Scripted {
        clock: Arc<VirtualClock>,
        call_s: Box<dyn FnMut() -> f64>,
        log: Arc<std::sync::Mutex<Vec<char>>>,
        name: char,
    }

    impl Subject for Scripted {
        fn run(&mut self, calls: u64) -> Result<()> {
            self.log.lock().unwrap().push(self.name);
            for _ in 0..calls {
                self.clock.advance((self.call_s)());
            }
            Ok(())
        }
        fn clock(&self) -> Arc<dyn Clock> {
            self.clock.clone()
        }
    }

    fn scripted(clock: &Arc<VirtualClock>, name: char, call_s: f64) -> Scripted {
        Scripted { clock: clock.clone(), call_s: Box::new(move || call_s), log: Arc::default(), name }
    }

    #[test]
    fn samples_are_interleaved_and_exact_on_a_virtual_clock() {
        let clock = Arc::new(VirtualClock::new());
        let (mut a, mut b) = (scripted(&clock, 'a', 1e-3), scripted(&clock, 'b', 1e-7));
        b.log = a.log.clone();
        let rule = StopRule::with_budget(10.0);
        let s = sample(&mut [&mut a, &mut b], &rule, &Cancel::new()).unwrap();
        assert!((s[0].median() / 1e-3 - 1.0).abs() < 1e-6 && (s[1].median() / 1e-7 - 1.0).abs() < 1e-6);
        assert_eq!(s[0].batch, 1);
        assert!((499..=501).contains(&s[1].batch), "a region lasts 50 us: {}", s[1].batch);
        assert_eq!(s[0].calls, 2 + rule.min_samples as u64, "two to warm up");
        assert_eq!(s[1].calls, 2 + s[1].batch * (1 + rule.min_samples as u64), "and one batch");
        assert_eq!(s[0].samples.len(), rule.min_samples);
        let log: String = a.log.lock().unwrap().iter().collect();
        assert!(log.ends_with("abbaabbaabbaab"), "{log}");
    }

    /// A card on which the first work after another context's takes 140 us more.
    struct OnCard {
        clock: Arc<VirtualClock>,
        context: Arc<std::sync::Mutex<String>>,
        info: DeviceInfo,
    }

    impl OnCard {
        fn new(clock: &Arc<VirtualClock>, context: &Arc<std::sync::Mutex<String>>, id: &str, pci: &str) -> Self {
            let mut info = DeviceInfo { id: id.into(), ..DeviceInfo::ordinary_gpu() };
            info.facts.pci = Some(pci.into());
            OnCard { clock: clock.clone(), context: context.clone(), info }
        }
    }

    impl Subject for OnCard {
        fn run(&mut self, calls: u64) -> Result<()> {
            let mut context = self.context.lock().unwrap();
            if *context != self.info.id {
                self.clock.advance(140e-6);
                context.clone_from(&self.info.id);
            }
            self.clock.advance(1e-5 * calls as f64);
            Ok(())
        }
        fn clock(&self) -> Arc<dyn Clock> {
            self.clock.clone()
        }
        fn device(&self) -> Option<&DeviceInfo> {
            Some(&self.info)
        }
        fn take_back(&mut self) -> Result<()> {
            self.run(1)
        }
    }

    #[test]
    fn no_sample_waits_for_another_apis_context_on_its_card() {
        let (clock, context) = (Arc::new(VirtualClock::new()), Arc::default());
        let on = |id: &str| OnCard::new(&clock, &context, id, "0000:00:06.0");
        let (mut cuda, mut opencl, mut wgpu) = (on("cuda:0"), on("opencl:0"), on("wgpu:0"));
        let mut cpu = scripted(&clock, 'c', 1e-4);
        let subjects: &mut [&mut dyn Subject] = &mut [&mut cpu, &mut cuda, &mut opencl, &mut wgpu];
        let mut pauses = 0;
        let series =
            sample_between(subjects, &StopRule::with_budget(10.0), &Cancel::new(), &mut || pauses += 1).unwrap();
        for s in &series[1..] {
            assert!(s.samples.iter().all(|t| (t / 1e-5 - 1.0).abs() < 1e-6), "{:?}", s.samples);
        }
        let samples: usize = series.iter().map(|s| s.samples.len()).sum();
        assert!(
            pauses > samples,
            "{pauses} pauses, {samples} samples: one after each time that the card was taken back too"
        );
    }

    #[test]
    fn who_has_a_card_alone_has_nothing_to_take_back() {
        let (clock, context) = (Arc::new(VirtualClock::new()), Arc::default());
        let mut one = OnCard::new(&clock, &context, "cuda:0", "0000:00:06.0");
        // Operands elsewhere, the same context.
        let mut again = OnCard::new(&clock, &context, "cuda:0", "0000:00:06.0");
        let other_card = Arc::default();
        let mut other = OnCard::new(&clock, &other_card, "cuda:1", "0000:00:07.0");
        let subjects: &mut [&mut dyn Subject] = &mut [&mut one, &mut again, &mut other];
        let mut pauses = 0;
        let series =
            sample_between(subjects, &StopRule::with_budget(10.0), &Cancel::new(), &mut || pauses += 1).unwrap();
        assert_eq!(pauses, series.iter().map(|s| s.samples.len()).sum::<usize>());
    }

    #[test]
    fn the_budget_bounds_a_slow_subject() {
        let clock = Arc::new(VirtualClock::new());
        let mut a = scripted(&clock, 'a', 0.7);
        let s = sample(&mut [&mut a], &StopRule::with_budget(2.0), &Cancel::new()).unwrap();
        assert!(s[0].samples.len() <= 3 && clock.now() < 3.6, "{} at {}", s[0].samples.len(), clock.now());
    }

    #[test]
    fn cancelling_keeps_what_there_is() {
        let clock = Arc::new(VirtualClock::new());
        let cancel = Cancel::new();
        let mut a = scripted(&clock, 'a', 1e-3);
        let (c, mut calls) = (cancel.clone(), 0);
        a.call_s = Box::new(move || {
            calls += 1;
            if calls == 5 {
                c.raise();
            }
            1e-3 * f64::from(calls)
        });
        let s = sample(&mut [&mut a], &StopRule::with_budget(10.0), &cancel).unwrap();
        assert!(!s[0].samples.is_empty() && s[0].samples.len() < 7);
    }
}
