//! One recorded shape timed in one process: on rigs of this program, or by workers.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::sink::Cancel;
use crate::base::{Clock, Code, Error, Result, Told};
use crate::device::probe::Rig;
use crate::engine::Runner;
use crate::jobs::calibrate::gross_error;
use crate::jobs::workers::{self, Start, Worker};
use crate::measure::{OpSubject, Residency, StopRule, Subject, sample};
use crate::op::{self, case};

/// Pairs of a look, and fewest that count.
const PAIRS: usize = 9;
const LEAST: usize = 3;

/// What is timed together: a case on the CPU and on devices, in turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) case: String,
    pub(super) residency: Residency,
    /// Ids.
    pub(super) devices: Vec<String>,
    /// Seconds on the clock of the devices.
    pub(super) budget_s: f64,
}

/// Seconds per call, sample by sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Timed {
    pub(super) cpu: Vec<f64>,
    /// In the order of the devices.
    pub(super) devices: Vec<Vec<f64>>,
    /// How a device's result is grossly wrong, if one is.
    pub(super) wrong: Option<String>,
}

/// Whoever times cases in processes 0, 1, ...
pub(super) trait Timer {
    /// `None` if the budget held too few pairs. Time that passed on another clock than the job's has passed there, too.
    fn time(&mut self, order: &Order, process: usize, cancel: &Cancel) -> Result<Option<Timed>>;
}

/// The devices of one process.
struct Station<'a> {
    cpu: Runner,
    cpu_variant: Option<&'a str>,
    devices: Vec<Runner>,
}

impl<'a> Station<'a> {
    fn new(rig: &Rig, cpu_variant: Option<&'a str>) -> Self {
        let devices = rig.devices.iter().map(|d| Runner::new(Arc::clone(d))).collect();
        Station { cpu: Runner::new(Arc::clone(&rig.cpu)), cpu_variant, devices }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.cpu.device().clock()
    }

    fn time(&self, order: &Order, cancel: &Cancel) -> Result<Option<Timed>> {
        let c = case::parse(&order.case)?;
        let op = op::find(c.op)?;
        let runner = |id: &String| {
            let found = self.devices.iter().find(|d| d.device().info().id == *id);
            found.ok_or_else(|| Error::new(Code::BadArgument, format!("no {id} to time")))
        };
        let runners = order.devices.iter().map(runner).collect::<Result<Vec<_>>>()?;
        let inputs = case::inputs(op, &c)?;
        let deadline = Duration::from_secs_f64((order.budget_s * 4.0).clamp(10.0, 600.0));
        let on_cpu = self.cpu.prepare(op, &c, self.cpu_variant)?;
        let on_devices = runners.iter().map(|r| r.prepare(op, &c, None)).collect::<Result<Vec<_>>>()?;
        // The CPU computes where the operands are in either residency.
        let mut cpu = OpSubject::new(&self.cpu, &on_cpu, &inputs, Residency::Resident, deadline)?;
        let mut devices = runners
            .iter()
            .zip(&on_devices)
            .map(|(r, p)| OpSubject::new(r, p, &inputs, order.residency, deadline))
            .collect::<Result<Vec<_>>>()?;
        let rule = StopRule {
            min_samples: PAIRS,
            max_samples: PAIRS,
            spread: 0.0,
            soft_s: order.budget_s,
            budget_s: order.budget_s,
        };
        let mut subjects: Vec<&mut dyn Subject> = vec![&mut cpu];
        subjects.extend(devices.iter_mut().map(|d| d as &mut dyn Subject));
        let mut samples = sample(&mut subjects, &rule, cancel)?.into_iter().map(|s| s.samples);
        if cancel.raised() {
            return Err(Error::new(Code::Cancelled, "interrupted"));
        }
        let cpu_s = samples.next().unwrap_or_default();
        if cpu_s.len() < LEAST {
            return Ok(None);
        }
        let want = cpu.outputs()?;
        let mut wrong = None;
        for d in &mut devices {
            wrong = wrong.or(gross_error(&c, &d.outputs()?, &want));
        }
        Ok(Some(Timed { cpu: cpu_s, devices: samples.collect(), wrong }))
    }
}

/// Times in this program: with one rig all processes are rounds in it, with several each rig is one.
pub(super) struct Here<'a>(Vec<Station<'a>>);

impl<'a> Here<'a> {
    /// The first rig's clock is the job's.
    pub(super) fn new(rigs: &[&Rig], cpu_variant: Option<&'a str>) -> Self {
        Here(rigs.iter().map(|r| Station::new(r, cpu_variant)).collect())
    }
}

impl Timer for Here<'_> {
    fn time(&mut self, order: &Order, process: usize, cancel: &Cancel) -> Result<Option<Timed>> {
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
    rig: &Rig,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    cancel: &Cancel,
) -> Result<()> {
    let station = Station::new(rig, cpu_variant);
    let clock = station.clock();
    workers::serve(input, output, |line| {
        let order: Order = serde_json::from_str(line)
            .map_err(|e| Error::new(Code::BadArgument, "no order of a workload").caused_by(e))?;
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

impl Timer for Crew<'_> {
    fn time(&mut self, order: &Order, process: usize, cancel: &Cancel) -> Result<Option<Timed>> {
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
