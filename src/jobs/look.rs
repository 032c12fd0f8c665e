//! One case timed in one process, on the CPU and on devices in turns: on rigs of this program, or by workers.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io::{BufRead, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::sink::Cancel;
use crate::base::{Case, Clock, Code, Error, HostTensor, Reading, Result, Told, stats};
use crate::device::probe::Rig;
use crate::device::sim;
use crate::engine::{KernelCache, Prepared, Runner, cache};
use crate::jobs::workers::{self, Start, Worker};
use crate::measure::calm::Calm;
use crate::measure::{OpSubject, REGION_S, Residency, StopRule, Subject, sample};
use crate::op::{self, OpDesc, Role, case};

use super::calibrate::gross_error;
use super::gauge::{self, Gauge};

/// Fewest pairs that are evidence.
pub(super) const LEAST: usize = 3;

/// Bytes that a process keeps for its next looks at the same cases: making operands, and memory that nobody has touched
/// yet, are most of such a look.
const KEPT: u64 = 128 << 20;

/// What is timed together: a case on the CPU and in each of these places, in turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// Its name.
    pub(super) case: String,
    /// A device by its id, and where the operands are.
    pub(super) places: Vec<(String, Residency)>,
    pub(super) pairs: usize,
    /// Seconds on the clock of the devices.
    pub(super) budget_s: f64,
    /// Whether the machine's state is read before and after.
    #[serde(default)]
    pub(super) read: bool,
}

/// Seconds per call, sample by sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Timed {
    pub(super) cpu: Vec<f64>,
    /// One series for each place of the order.
    pub(super) devices: Vec<Vec<f64>>,
    /// Calls in all, those to warm up among them.
    pub(super) calls: u64,
    /// Kernel on the first device.
    pub(super) kernel: String,
    /// How a device's result is grossly wrong, if one is.
    pub(super) wrong: Option<String>,
    /// Seconds that operands took: making, moving and comparing them, which a larger case has more of. Not the kernels, nor what a
    /// library loads with its first call.
    pub(super) made_s: f64,
    /// Seconds of what this process does once for a case: building its kernels, their first calls, and keeping what was built.
    pub(super) once_s: f64,
    /// True if something else slowed the processor down before or after it: another such look finds other times.
    #[serde(default)]
    pub(super) disturbed: bool,
    /// What was read of the machine's state, one for each place of the order; none if nobody asked, or on a simulated machine.
    #[serde(default)]
    pub(super) readings: Vec<Reading>,
}

/// Whoever times cases in processes 0, 1, ...
pub(super) trait Looker {
    /// `None` if the budget held too few pairs. Time that passed on another clock than the job's has passed there, too.
    fn look(&mut self, order: &Order, process: usize, cancel: &Cancel) -> Result<Option<Timed>>;
}

/// The devices of one process.
struct Station<'a> {
    cpu: Runner,
    cpu_variant: Option<&'a str>,
    devices: Vec<Runner>,
    kernels: KernelCache,
    kept: RefCell<Kept<Ready>>,
    /// Names of cases that have run in this process, by device.
    ran: RefCell<HashSet<(String, String)>>,
    /// Seconds that kernels took in the look that is under way.
    built_s: Cell<f64>,
    calm: RefCell<Calm>,
    /// By id of the device.
    gauges: RefCell<Vec<(String, Rc<Gauge>)>>,
}

/// What is read at one moment.
struct Now {
    /// True if something else slows the processor down.
    disturbed: bool,
    cpu_s: f64,
    devices_s: Vec<f64>,
}

/// A case with what it takes to run it.
#[derive(Debug)]
struct Ready {
    case: Case,
    /// Read operands.
    inputs: Vec<HostTensor>,
    cpu: Prepared,
    /// By id of the device.
    devices: Vec<(String, Prepared)>,
    /// Where nothing is computed there is nothing to compare.
    timing_only: bool,
}

/// What cases need by their name and devices, the one that was used last at the end.
#[derive(Debug)]
struct Kept<T>(Vec<(String, u64, Rc<T>)>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Kept(Vec::new())
    }
}

impl<T> Kept<T> {
    /// What is kept by this name, or made; before that goes what was used longest ago, until no more than `most` bytes will be
    /// kept. What is larger alone is not kept. Errors: those of `make`.
    fn of(&mut self, name: &str, bytes: u64, most: u64, make: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        if let Some(i) = self.0.iter().position(|(known, ..)| known == name) {
            let entry = self.0.remove(i);
            let found = Rc::clone(&entry.2);
            self.0.push(entry);
            return Ok(found);
        }
        let room = most.saturating_sub(bytes);
        while self.0.iter().map(|(_, bytes, _)| bytes).sum::<u64>() > room {
            self.0.remove(0);
        }
        let new = Rc::new(make()?);
        if bytes <= most {
            self.0.push((name.to_string(), bytes, Rc::clone(&new)));
        }
        Ok(new)
    }

    /// Nothing is kept any more.
    fn clear(&mut self) {
        self.0.clear();
    }
}

impl<'a> Station<'a> {
    fn new(rig: &Rig, cpu_variant: Option<&'a str>, kernels: &KernelCache) -> Self {
        let devices = rig.devices.iter().map(|d| Runner::new(Arc::clone(d)).keeping(kernels.clone())).collect();
        Station {
            cpu: Runner::new(Arc::clone(&rig.cpu)),
            cpu_variant,
            devices,
            kernels: kernels.clone(),
            kept: RefCell::default(),
            ran: RefCell::default(),
            built_s: Cell::new(0.0),
            calm: RefCell::default(),
            gauges: RefCell::default(),
        }
    }

    fn device(&self, id: &str) -> Result<&Runner> {
        let found = self.devices.iter().find(|d| d.device().info().id == id);
        found.ok_or_else(|| Error::new(Code::BadArgument, format!("no {id} to time")))
    }

    /// Nothing is fetched and written meanwhile; what was compiled is kept after.
    fn time(&self, order: &Order, cancel: &Cancel) -> Result<Option<Timed>> {
        let hold = self.kernels.hold();
        let mut timed = self.timed(order, cancel);
        drop(hold);
        if timed.is_err() {
            // Nobody knows what state a device that failed left its memory in.
            self.kept.borrow_mut().clear();
        }
        if cancel.raised() {
            self.kernels.abandon();
        } else {
            let begin = self.clock().now();
            self.kernels.flush(cache::FLUSH);
            if let Ok(Some(timed)) = &mut timed {
                timed.once_s += self.clock().now() - begin;
            }
        }
        timed
    }

    /// What an order's case needs, kept or made.
    fn ready(&self, order: &Order) -> Result<Rc<Ready>> {
        let case = case::parse(&order.case)?;
        let op = op::find(case.op)?;
        let mut ids: Vec<&str> = Vec::new();
        for (id, _) in &order.places {
            if !ids.contains(&id.as_str()) {
                ids.push(id);
            }
        }
        // On the host, the CPU and each device; what nobody can count is not kept.
        let bytes = op.total_bytes(&case).unwrap_or(u64::MAX).saturating_mul(2 + ids.len() as u64);
        let name = format!("{} {}", order.case, ids.join(" "));
        self.kept.borrow_mut().of(&name, bytes, KEPT, || self.make(op, case, &ids))
    }

    fn make(&self, op: &'static OpDesc, case: Case, ids: &[&str]) -> Result<Ready> {
        let begin = self.clock().now();
        // Places on one device share its kernel.
        let (mut devices, mut timing_only) = (Vec::new(), false);
        for id in ids {
            let runner = self.device(id)?;
            timing_only |= sim::timing_only(runner.device().info());
            devices.push((id.to_string(), runner.prepare(op, &case, None)?));
        }
        let cpu = self.cpu.prepare(op, &case, self.cpu_variant)?;
        self.built_s.set(self.clock().now() - begin);
        let inputs = if timing_only { zeros(op, &case)? } else { case::inputs(op, &case)? };
        Ok(Ready { case, inputs, cpu, devices, timing_only })
    }

    fn timed(&self, order: &Order, cancel: &Cancel) -> Result<Option<Timed>> {
        let clock = self.clock();
        let begin = clock.now();
        self.built_s.set(0.0);
        let ready = self.ready(order)?;
        let deadline = Duration::from_secs_f64((order.budget_s * 4.0).clamp(10.0, 600.0));
        // The CPU computes where the operands are in either residency.
        let mut cpu = OpSubject::new(&self.cpu, &ready.cpu, &ready.inputs, Residency::Resident, deadline)?;
        let mut devices = Vec::new();
        for (id, residency) in &order.places {
            let runner = self.device(id)?;
            for (_, kernel) in ready.devices.iter().filter(|(known, _)| known == id) {
                // A call of the engine ends with a wait, so each has its own: what several share of one depends on how many
                // they are, which is for the clock's sake alone.
                devices.push(OpSubject::new(runner, kernel, &ready.inputs, *residency, deadline)?.single());
            }
        }
        let rule = StopRule {
            min_samples: order.pairs,
            max_samples: order.pairs,
            spread: 0.0,
            soft_s: order.budget_s,
            budget_s: order.budget_s,
            region_s: REGION_S,
        };
        let mut subjects: Vec<&mut dyn Subject> = vec![&mut cpu];
        subjects.extend(devices.iter_mut().map(|d| d as &mut dyn Subject));
        let begins = self.begins(order, &ready);
        let mut first = begins;
        let gauges = self.gauges(order)?;
        let begin_reading = clock.now();
        let mut read = self.readers(order, &gauges, deadline)?;
        let before = self.state(&mut read)?;
        let mut reading_s = clock.now() - begin_reading;
        let begin_rounds = clock.now();
        let series = loop {
            let series = sample(&mut subjects, &rule, cancel)?;
            if cancel.raised() {
                return Err(Error::new(Code::Cancelled, "interrupted"));
            }
            // What a process does once for a case is no matter of the case's size. cuBLAS took 75 to 126 ms for its first product on
            // an H200, and as long again for the first of a size for which it takes another of its kernels: that left no pairs of 64
            // by 64 within 35 ms, and so no larger size either.
            if series[0].samples.len() >= LEAST || !std::mem::take(&mut first) {
                break series;
            }
        };
        let in_rounds = clock.now() - begin_rounds;
        let after = self.state(&mut read)?;
        drop(read);
        reading_s += clock.now() - begin_rounds - in_rounds;
        let between = |(a, b): (&f64, &f64)| {
            let [before, after] =
                [(before.cpu_s, *a), (after.cpu_s, *b)].map(|(cpu_s, device_s)| Reading { cpu_s, device_s });
            before.between(after)
        };
        let readings = before.devices_s.iter().zip(&after.devices_s).map(between).collect();
        let disturbed = before.disturbed || after.disturbed;
        let calls = series.iter().map(|s| s.calls).sum();
        let in_calls: f64 = series.iter().map(|s| s.calls as f64 * stats::median(&s.samples)).sum();
        let mut samples = series.into_iter().map(|s| s.samples);
        let on_cpu = samples.next().unwrap_or_default();
        if on_cpu.len() < LEAST {
            return Ok(None);
        }
        let mut wrong = None;
        if !ready.timing_only {
            let want = cpu.outputs()?;
            for d in &mut devices {
                wrong = wrong.or(gross_error(&ready.case, d.outputs()?, want));
            }
        }
        let kernel = ready.devices.first().map_or_else(String::new, |(_, k)| k.variant.to_string());
        let devices = samples.collect();
        let made_s = (clock.now() - begin - in_rounds - reading_s - self.built_s.get()).max(0.0);
        let once_s = self.built_s.get() + if begins { (in_rounds - in_calls).max(0.0) } else { 0.0 };
        Ok(Some(Timed { cpu: on_cpu, devices, calls, kernel, wrong, made_s, once_s, disturbed, readings }))
    }

    /// What tells the state of each device of an order, one for each place; none if nobody asked, or on a simulated machine, whose
    /// time does not pass with ours.
    fn gauges(&self, order: &Order) -> Result<Vec<Rc<Gauge>>> {
        if !order.read || self.clock().is_virtual() {
            return Ok(Vec::new());
        }
        let begin = self.clock().now();
        let mut made = self.gauges.borrow_mut();
        let mut of = |(id, _): &(String, Residency)| {
            if let Some((_, gauge)) = made.iter().find(|(known, _)| known == id) {
                return Ok(Rc::clone(gauge));
            }
            let gauge = Rc::new(Gauge::new(self.device(id)?)?);
            made.push((id.clone(), Rc::clone(&gauge)));
            Ok(gauge)
        };
        let gauges = order.places.iter().map(&mut of).collect();
        self.built_s.set(self.built_s.get() + self.clock().now() - begin);
        gauges
    }

    fn readers<'g>(&'g self, order: &Order, gauges: &'g [Rc<Gauge>], deadline: Duration) -> Result<Vec<OpSubject<'g>>> {
        let of = |(gauge, (id, residency)): (&'g Rc<Gauge>, &(String, Residency))| {
            gauge.subject(self.device(id)?, *residency, deadline)
        };
        gauges.iter().zip(&order.places).map(of).collect()
    }

    /// The state that the machine is in now; of a simulated one only that nothing disturbs it.
    fn state(&self, readers: &mut [OpSubject<'_>]) -> Result<Now> {
        let (disturbed, cpu_s) =
            if self.clock().is_virtual() { (false, f64::NAN) } else { self.calm.borrow_mut().read() };
        let devices_s = readers.iter_mut().map(gauge::seconds).collect::<Result<_>>()?;
        Ok(Now { disturbed, cpu_s, devices_s })
    }

    /// Whether the case runs in this process for the first time, on some device.
    fn begins(&self, order: &Order, ready: &Ready) -> bool {
        let mut ran = self.ran.borrow_mut();
        ready.devices.iter().fold(false, |first, (id, _)| ran.insert((order.case.clone(), id.clone())) || first)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.cpu.device().clock()
    }
}

/// Read operands of a case, all zero.
fn zeros(op: &OpDesc, case: &Case) -> Result<Vec<HostTensor>> {
    let shapes = (op.shapes)(case)?;
    let read = |i: &usize| op.operands[*i].role != Role::Out;
    (0..shapes.len()).filter(read).map(|i| HostTensor::zeros(op.operand_dtype(i, case), &shapes[i])).collect()
}

/// Times in this program: with one rig all processes are rounds in it, with several each rig is one.
pub(super) struct Here<'a>(Vec<Station<'a>>);

impl<'a> Here<'a> {
    /// The first rig's clock is the job's.
    pub(super) fn new(rigs: &[&Rig], cpu_variant: Option<&'a str>, kernels: &KernelCache) -> Self {
        Here(rigs.iter().map(|r| Station::new(r, cpu_variant, kernels)).collect())
    }
}

impl Looker for Here<'_> {
    fn look(&mut self, order: &Order, process: usize, cancel: &Cancel) -> Result<Option<Timed>> {
        let which = process % self.0.len();
        let clock = self.0[which].clock();
        let begin = clock.now();
        let timed = self.0[which].time(order, cancel);
        if which > 0 {
            pass(&self.0[0].clock(), clock.now() - begin);
        }
        timed
    }
}

/// Lets time pass on the job's clock that another, simulated one has shown.
fn pass(clock: &Arc<dyn Clock>, seconds: f64) {
    if clock.is_virtual() {
        clock.sleep(Duration::from_secs_f64(seconds.max(0.0)));
    }
}

/// A worker's answer.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// Seconds that passed on the clock of its devices.
    spent_s: f64,
    timed: Result<Option<Timed>, Told>,
}

/// The worker: reads orders, one a line, and answers each with a line. Ends with its input, or where its output is closed.
///
/// Errors: `BadArgument` for what is no order.
pub fn worker(
    cpu_variant: Option<&str>,
    (rig, kernels): (&Rig, &KernelCache),
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    cancel: &Cancel,
) -> Result<()> {
    let station = Station::new(rig, cpu_variant, kernels);
    let clock = station.clock();
    workers::serve(input, output, |line| {
        let order: Order = serde_json::from_str(line)
            .map_err(|e| Error::new(Code::BadArgument, "no order to time a case").caused_by(e))?;
        let begin = clock.now();
        let timed = station.time(&order, cancel).map_err(|e| Told::from(&e));
        Ok(Answer { spent_s: clock.now() - begin, timed })
    })
}

/// Times in workers, which are started when they are first needed.
pub(super) struct Crew<'a> {
    start: &'a Start,
    clock: Arc<dyn Clock>,
    workers: Vec<Option<Worker>>,
}

impl<'a> Crew<'a> {
    pub(super) fn new(start: &'a Start, clock: Arc<dyn Clock>) -> Self {
        Crew { start, clock, workers: (0..start.processes.max(1)).map(|_| None).collect() }
    }
}

impl Looker for Crew<'_> {
    fn look(&mut self, order: &Order, process: usize, cancel: &Cancel) -> Result<Option<Timed>> {
        let which = process % self.workers.len();
        let mut worker = match self.workers[which].take() {
            Some(w) => w,
            None => Worker::start(self.start, which)?,
        };
        let text = serde_json::to_string(order)
            .map_err(|e| Error::new(Code::Internal, "an order cannot be written").caused_by(e))?;
        let limit = self.start.limit + Duration::from_secs_f64(8.0 * order.budget_s.clamp(0.0, 600.0));
        // One that died or hangs is not used again.
        let answer: Answer = worker.ask(&text, limit, cancel)?;
        self.workers[which] = Some(worker);
        pass(&self.clock, answer.spent_s);
        answer.timed.map_err(Told::error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attrs, DType, Fill};
    use crate::device::Device;
    use crate::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
    use crate::device::sim::Compute;

    /// Several launches that share a wait would look faster, by how many they happen to be.
    #[test]
    fn each_resident_call_has_its_own_wait() {
        let mut spec = sim::spec("laptop").unwrap().quiet();
        spec.device.sync_s = 10e-6;
        let (cpu, device) = sim::open_spec(spec.clone(), Compute::Real).unwrap();
        let rig = Rig { devices: vec![device], cpu, absent: Vec::new() };
        let op = op::find("exp").unwrap();
        let case = op.case(DType::F32, &[1000], Attrs::new(), Fill::Uniform).unwrap();
        let order = Order {
            case: case.to_string(),
            places: vec![("sim:laptop".into(), Residency::Resident)],
            pairs: 5,
            budget_s: 1.0,
            read: false,
        };
        let mut here = Here::new(&[&rig], None, &KernelCache::off());
        let timed = here.look(&order, 0, &Cancel::new()).unwrap().unwrap();
        let one = spec.device.call(&[], &[(op.cost)(&case)], DType::F32, &[]).unwrap();
        assert!(one < 50e-6, "several of them would fit into a region: {one}");
        for seconds in &timed.devices[0] {
            assert!((seconds / one - 1.0).abs() < 0.01, "{seconds} instead of {one}");
        }
    }

    #[test]
    fn what_a_case_needs_is_kept_as_far_as_it_fits() {
        let mut kept = Kept::default();
        // Whether it was there already.
        let mut look = |name: &str, bytes: u64| {
            let mut made = false;
            let make = || {
                made = true;
                Ok(name.to_string())
            };
            assert_eq!(*kept.of(name, bytes, 80, make).unwrap(), name);
            !made
        };
        // Two of 40 bytes fit; the one that was used last stays.
        assert!(!look("a", 40) && !look("b", 40) && look("a", 40));
        assert!(!look("c", 40) && look("a", 40) && !look("b", 40));
        // One that is too large is not kept, and has all the room while it is there.
        assert!(!look("large", 120) && !look("large", 120) && !look("a", 40) && look("a", 40));
        let none = || Err(Error::new(Code::Internal, "none"));
        assert!(kept.of("bad", 8, 80, none).is_err());
        assert_eq!(*kept.of("a", 40, 80, none).unwrap(), "a");
    }

    /// A look at a case that is kept is as good as the first: the same kernel, compared in the same way.
    #[test]
    fn a_second_look_prepares_nothing_and_checks_again() {
        let (cpu, device) = sim::open("laptop").unwrap();
        let rig = Rig { devices: vec![device], cpu, absent: Vec::new() };
        let op = op::find("exp").unwrap();
        let case = op.case(DType::F32, &[1000], Attrs::new(), Fill::Uniform).unwrap();
        let place = |residency| ("sim:laptop".to_string(), residency);
        let places = vec![place(Residency::Resident), place(Residency::Always)];
        let order = Order { case: case.to_string(), places, pairs: 3, budget_s: 1.0, read: false };
        let station = Station::new(&rig, None, &KernelCache::off());
        let first = station.ready(&order).unwrap();
        assert_eq!(first.devices.len(), 1, "places on one device share its kernel");
        for _ in 0..2 {
            let timed = station.time(&order, &Cancel::new()).unwrap().unwrap();
            assert_eq!((timed.wrong, timed.devices.len()), (None, 2));
        }
        assert!(Rc::ptr_eq(&first, &station.ready(&order).unwrap()));
        // 1,000 numbers read and as many written: on the host, on the CPU and on the device.
        assert_eq!(station.kept.borrow().0[0].1, 8000 * 3);
    }

    /// Drivers load a kernel when it runs first, and libraries make what they need then.
    #[test]
    fn a_kernels_first_call_in_a_process_does_not_spend_the_budget() {
        let late = |when| {
            let (cpu, device) = sim::open("laptop").unwrap();
            let fault = Fault::Slow(Duration::from_secs(2));
            let rules = vec![Rule { on: On::Launch, when, fault }];
            let plan = FaultPlan { text: "late".into(), rules };
            let device = Arc::new(Faulty::new(device, plan)) as Arc<dyn Device>;
            let rig = Rig { devices: vec![device], cpu, absent: Vec::new() };
            let case = op::find("exp").unwrap().case(DType::F32, &[1000], Attrs::new(), Fill::Uniform).unwrap();
            let places = vec![("sim:laptop".to_string(), Residency::Resident)];
            let order = Order { case: case.to_string(), places, pairs: 3, budget_s: 0.5, read: false };
            let station = Station::new(&rig, None, &KernelCache::off());
            station.time(&order, &Cancel::new()).unwrap()
        };
        let timed = late(When::Nth(1)).expect("three pairs");
        assert!(timed.devices[0].iter().all(|s| *s < 0.01), "{:?}", timed.devices);
        assert!(timed.made_s < 0.1, "no larger case has more of it: {}", timed.made_s);
        assert!((1.9..2.2).contains(&timed.once_s), "nor has a later look: {}", timed.once_s);
        assert!(late(When::From(1)).is_none(), "one that is always so slow is too slow");
    }

    /// A library takes other kernels for other sizes, and loads each when it first runs.
    #[test]
    fn nor_does_the_first_call_of_a_further_size() {
        let case = |n| op::find("exp").unwrap().case(DType::F32, &[n], Attrs::new(), Fill::Uniform).unwrap();
        let places = vec![("sim:laptop".to_string(), Residency::Resident)];
        let order =
            |n| Order { case: case(n).to_string(), places: places.clone(), pairs: 3, budget_s: 0.5, read: false };
        // What is found of a small size, the launches until then that the rule met, and what is found of a larger size.
        let look = |when, longer| {
            let (cpu, device) = sim::open("laptop").unwrap();
            let rules = vec![Rule { on: On::Launch, when, fault: Fault::Slow(longer) }];
            let faulty = Arc::new(Faulty::new(device, FaultPlan { text: "late".into(), rules }));
            let rig = Rig { devices: vec![Arc::clone(&faulty) as Arc<dyn Device>], cpu, absent: Vec::new() };
            let station = Station::new(&rig, None, &KernelCache::off());
            let small = station.time(&order(500), &Cancel::new()).unwrap();
            let met = faulty.hits()[0];
            (small, met, station.time(&order(1000), &Cancel::new()).unwrap())
        };
        let (_, launches, _) = look(When::From(1), Duration::ZERO);
        assert!(launches > 3);
        let (small, met, large) = look(When::Nth(launches + 1), Duration::from_secs(2));
        let large = large.expect("three pairs");
        assert!(small.is_some() && met == 0);
        assert!(large.devices[0].iter().all(|s| *s < 0.01) && large.made_s < 0.1, "{large:?}");
        assert!((1.9..2.2).contains(&large.once_s), "{large:?}");
    }

    /// 30 looks at what a device with a planted fault computes: what is wrong, and how many cases are kept then.
    fn looks(on: On, from: u64, fault: Fault) -> (Arc<Faulty>, Vec<(Result<Option<String>>, usize)>) {
        let (cpu, device) = sim::open("laptop").unwrap();
        let rules = vec![Rule { on, when: When::From(from), fault }];
        let faulty = Arc::new(Faulty::new(device, FaultPlan { text: "planted".into(), rules }));
        let rig = Rig { devices: vec![Arc::clone(&faulty) as Arc<dyn Device>], cpu, absent: Vec::new() };
        let case = op::find("exp").unwrap().case(DType::F32, &[1000], Attrs::new(), Fill::Uniform).unwrap();
        let places = vec![("sim:laptop".to_string(), Residency::Resident)];
        let order = Order { case: case.to_string(), places, pairs: 3, budget_s: 1.0, read: false };
        let station = Station::new(&rig, None, &KernelCache::off());
        let look = || {
            let wrong = station.time(&order, &Cancel::new()).map(|timed| timed.unwrap().wrong);
            (wrong, station.kept.borrow().0.len())
        };
        (faulty, (0..30).map(|_| look()).collect())
    }

    /// What is kept holds the right results of earlier looks, which a kernel that no longer runs must not be given credit for.
    #[test]
    fn kept_memory_does_not_hide_a_device_that_stopped_computing() {
        let (faulty, found) = looks(On::Launch, 50, Fault::Skip);
        assert!(faulty.hits()[0] > 0);
        let wrong: Vec<bool> = found.iter().map(|(wrong, _)| wrong.as_ref().unwrap().is_some()).collect();
        let first = wrong.iter().position(|w| *w).unwrap();
        assert!(first > 2 && wrong[first..].iter().all(|w| *w), "right at first: {found:?}");
        assert!(found.iter().all(|(_, kept)| *kept == 1));
    }

    #[test]
    fn nothing_is_kept_of_a_device_that_failed() {
        let (faulty, found) = looks(On::Launch, 50, Fault::Fail(Code::LaunchFailed));
        assert!(faulty.hits()[0] > 0 && found[0].0.is_ok() && found[29].0.is_err(), "{found:?}");
        assert!(found.iter().all(|(wrong, kept)| *kept == usize::from(wrong.is_ok())), "{found:?}");
    }
}
