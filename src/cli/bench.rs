//! `bench`: rows in several processes, tables and files, verdicts against an earlier run.

use std::time::Duration;

use crate::base::record::{BenchRecord, ChangeRecord, Host, Status};
use crate::base::sink::{Cancel, Sink};
use crate::base::{Code, DeviceInfo, Document, Error, Record, Result, units};
use crate::device::cpu::Pin;
use crate::device::probe::Rig;
use crate::engine::KernelCache;
use crate::jobs::bench::{self, baseline, processes};
use crate::jobs::ceilings::{self, judge::Ceilings};
use crate::jobs::workers::Start;
use crate::measure::REGION_S;
use crate::measure::compare::{Change, Rule};
use crate::report;

use super::args;
use super::ceilings::{NOISE_S, noise_line};
use super::commands::{Ctx, Picture, cancel_on_signals, check_plot, dtypes, host, ops, plot, residencies, seconds};
use super::output::{self, CliSink};
use super::sizes::{parse_shape, parse_sizes};

/// Largest file that is read as an earlier run.
const LARGEST_BASELINE: u64 = 256 << 20;

fn earlier(path: &str) -> Result<Document> {
    let failed = |e: std::io::Error| Error::new(Code::BadArgument, format!("--baseline {path}")).caused_by(e);
    let bad = |why: &str| Error::new(Code::BadArgument, format!("--baseline {path}: {why}"));
    if std::fs::metadata(path).map_err(failed)?.len() > LARGEST_BASELINE {
        return Err(bad(&format!("more than {LARGEST_BASELINE} bytes")));
    }
    baseline::parse(&std::fs::read_to_string(path).map_err(failed)?).map_err(|e| bad(e.detail()))
}

/// The timed region of `--region`: from the shortest that clocks resolve well to a second.
fn region(text: &str) -> Result<f64> {
    let region_s = seconds("--region", text)?;
    if (REGION_S..=1.0).contains(&region_s) {
        return Ok(region_s);
    }
    Err(Error::new(Code::BadArgument, format!("--region {text}: expected {} to 1 s", units::seconds(REGION_S))))
}

impl Ctx<'_> {
    fn bench_config(a: &args::Bench, ceilings: Ceilings) -> Result<bench::BenchConfig> {
        if !(1..=64).contains(&a.processes) {
            return Err(Error::new(Code::BadArgument, format!("--processes {}: expected 1 to 64", a.processes)));
        }
        Ok(bench::BenchConfig {
            ops: ops(a.op.as_deref().unwrap_or("gemm"))?,
            sizes: a.sizes.as_deref().map(parse_sizes).transpose()?,
            shape: a.shape.as_deref().map(parse_shape).transpose()?,
            attrs: a.attr.clone(),
            dtypes: dtypes(&a.dtype)?,
            residencies: residencies(&a.residency)?,
            variant: a.variant.clone(),
            cpu_variant: a.cpu_variant.clone(),
            budget_s: seconds("--budget", &a.budget)? / a.processes as f64,
            region_s: region(&a.region)?,
            cache: a.cache.parse()?,
            cases: Vec::new(),
            ceilings,
            kernels: KernelCache::off(),
        })
    }

    /// Measures the points whose numbers come in, for [`Ctx::bench`] in another process.
    pub(super) fn bench_worker(&self, a: &args::Bench) -> Result<u8> {
        Self::bench_config(a, Ceilings::default())?;
        let cancel = cancel_on_signals()?;
        let rig = self.rig(&a.common, Pin::Workers)?;
        let ceilings = self.kept_ceilings(&everything(&rig)).ceilings;
        let cfg = bench::BenchConfig { kernels: KernelCache::of(self.env), ..Self::bench_config(a, ceilings)? };
        self.serve(|input, output| processes::worker(&cfg, &rig, input, output, &cancel))
    }

    pub(super) fn bench(&self, a: &args::Bench) -> Result<u8> {
        if a.suite.is_some() {
            return self.ablate(a);
        }
        check_plot(a.plot.as_deref())?;
        // A bad request is refused before any device is opened.
        Self::bench_config(a, Ceilings::default())?;
        let cancel = cancel_on_signals()?;
        // Workers keep the cores to themselves.
        let rig = self.rig(&a.common, if a.processes == 1 { Pin::Workers } else { Pin::Free })?;
        let old = a.baseline.as_deref().map(earlier).transpose()?;
        let json_on_stdout = a.common.json.as_deref() == Some("-");
        let table = !json_on_stdout && !a.csv && !a.markdown;
        // The header waits for the first row: a request that is refused prints nothing on stdout.
        let mut header = Some(report::text::bench_header());
        let mut sink = CliSink::new(
            a.common.quiet,
            true,
            Box::new(move |r| match r {
                Record::Bench(b) if table => {
                    let row = report::text::bench_row(b);
                    Some(header.take().map_or_else(|| row.clone(), |h| format!("{h}\n{row}")))
                }
                _ => None,
            }),
        );
        let infos: Vec<DeviceInfo> = rig.devices.iter().map(|d| d.info().clone()).collect();
        let absent = rig.absent.clone();
        let unfit: Vec<_> = self.on_record(&infos).into_iter().filter(|r| r.fitness == "unfit").collect();
        unfit.iter().filter_map(report::trial::unfit).for_each(|line| sink.note(&line));
        let kept = self.kept_ceilings(&everything(&rig));
        let cfg = bench::BenchConfig { kernels: KernelCache::of(self.env), ..Self::bench_config(a, kept.ceilings)? };
        // What is refused is refused before anything is measured.
        bench::check(&cfg)?;
        let awake = self.awake(&rig, old.as_ref().map(|o| o.host.awake))?;
        let host = Host { awake: awake.is_some(), ..host() };
        for difference in
            old.iter().map(|o| differences(o, &host, &infos, a.allow_mismatch)).collect::<Result<Vec<_>>>()?.concat()
        {
            sink.note(&difference);
        }
        let noise = ceilings::noise(&rig, NOISE_S, &mut sink, &cancel);
        // The document says so itself.
        let hints = kept.hint.into_iter().chain(noise.iter().map(noise_line)).filter(|_| !json_on_stdout);
        for said in kept.faults.into_iter().chain(hints) {
            sink.note(&said);
        }
        let mut start = None;
        let summary = if a.processes == 1 {
            bench::run(&cfg, &rig, &mut sink, &cancel)?
        } else {
            // What this process holds of the devices is given back before others measure.
            drop(rig);
            let limit = Duration::from_secs_f64(60.0 + 8.0 * cfg.budget_s * (infos.len() + 1) as f64);
            let start = start.insert(self.workers("bench-worker", a.processes, limit)?);
            processes::run(&cfg, start, &infos, &mut sink, &cancel)?
        };
        let mut code = if summary.cancelled { super::INTERRUPTED } else { summary.exit_code() };
        let mut records = sink.finish()?;
        for record in &mut records {
            if let Record::Bench(b) = record
                && unfit.iter().any(|r| r.uid == b.subject.uid)
            {
                b.subject.flags.push("unfit".into());
            }
        }
        records.extend(noise.into_iter().map(|n| Record::Noise(Box::new(n))));
        records.extend(summary.kernels.into_iter().map(|k| Record::Kernels(Box::new(k))));
        let mut complete = !summary.cancelled;
        if let Some(old) = &old {
            let held = Self::held(a, &cfg, old, start.as_ref(), &infos, &records, &cancel)?;
            for row in held.take_over(&mut records) {
                code = code.max(1);
                if table {
                    output::data(&format!("{}\n", report::text::bench_row(&row)))?;
                }
            }
            if table {
                output::data(&report::text::changes(&held.changes, output::width()))?;
            }
            if a.fail_on_regression && code == 0 {
                let lost = baseline::lost(old, &held.rows);
                for row in lost.iter().filter(|_| !a.common.quiet) {
                    output::talk(&format!("measured in the baseline and not now: {row}"));
                }
                code = regression_code(&held.changes, !lost.is_empty());
            }
            if cancel.raised() {
                (code, complete) = (super::INTERRUPTED, false);
            }
            records.extend(held.changes.into_iter().map(|c| Record::Change(Box::new(c))));
        }
        if a.csv && !json_on_stdout {
            output::data(&report::csv::bench(&records))?;
        }
        if a.markdown && !json_on_stdout {
            output::data(&report::markdown::bench(&records))?;
        }
        plot(a.plot.as_deref(), Picture::Bench, &records)?;
        let doc = Document { host, ..self.document(infos, absent, records, complete, code) };
        self.write_json(a.common.json.as_deref(), &doc)?;
        Ok(code)
    }

    /// The verdicts; rows that look slower or cannot be told are measured once more first.
    fn held(
        a: &args::Bench,
        cfg: &bench::BenchConfig,
        old: &Document,
        start: Option<&Start>,
        infos: &[DeviceInfo],
        records: &[Record],
        cancel: &Cancel,
    ) -> Result<Held> {
        let rows: Vec<BenchRecord> = baseline::rows(records).cloned().collect();
        let changes = baseline::compare(old, &rows, &Rule::default());
        let suspects = baseline::suspects(&changes);
        let Some(start) = start.filter(|_| !suspects.is_empty() && !cancel.raised()) else {
            return Ok(Held { changes, rows });
        };
        if !a.common.quiet {
            output::talk(&format!("measuring {} row(s) once more", suspects.len()));
        }
        let doubtful: Vec<&BenchRecord> = suspects.iter().map(|i| &rows[*i]).collect();
        let second = processes::again(cfg, start, infos, &doubtful, cancel)?;
        let changes = baseline::compare_again(old, &rows, &second, &Rule::default());
        Ok(Held { changes, rows: baseline::with_second(&rows, &second) })
    }
}

/// Rows held against those of an earlier run.
struct Held {
    changes: Vec<ChangeRecord>,
    /// The rows as they were held, with what a second measurement added or found.
    rows: Vec<BenchRecord>,
}

impl Held {
    /// Puts rows that failed when they were measured again in the place of those that had seemed right; gives them.
    fn take_over(&self, records: &mut [Record]) -> Vec<BenchRecord> {
        let rows = records.iter_mut().filter_map(|r| match r {
            Record::Bench(row) => Some(row),
            _ => None,
        });
        let mut found = Vec::new();
        for (row, held) in rows.zip(&self.rows) {
            let bad = matches!(held.subject.status, Status::Failed | Status::Suspect);
            if bad && row.subject.status == Status::Ok {
                **row = held.clone();
                found.push(held.clone());
            }
        }
        found
    }
}

/// The devices of a run, and the CPU that they are compared with.
fn everything(rig: &Rig) -> Vec<DeviceInfo> {
    let mut all: Vec<DeviceInfo> = rig.devices.iter().map(|d| d.info().clone()).collect();
    if !rig.devices.iter().any(|d| d.serial() == rig.cpu.serial()) {
        all.push(rig.cpu.info().clone());
    }
    all
}

/// What differs from the machine of an earlier run, if that is allowed.
fn differences(old: &Document, host: &Host, infos: &[DeviceInfo], allowed: bool) -> Result<Vec<String>> {
    let differences = baseline::differences(old, host, infos);
    if differences.is_empty() || allowed {
        return Ok(differences);
    }
    Err(Error::new(
        Code::BadArgument,
        format!("--baseline: another machine ({}); --allow-mismatch compares nevertheless", differences.join("; ")),
    ))
}

/// 1: a row is slower; 4: of no row can it be said that it is not, so nothing was checked, or one that was measured then is not
/// now; else 0.
fn regression_code(changes: &[ChangeRecord], lost: bool) -> u8 {
    let any = |verdicts: &[Change]| changes.iter().any(|c| verdicts.iter().any(|v| v.name() == c.verdict));
    match () {
        () if any(&[Change::Slower]) => 1,
        () if lost => 4,
        () if any(&[Change::Same, Change::Faster]) => 0,
        () => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attrs, DType};

    fn change(verdict: Change) -> ChangeRecord {
        ChangeRecord {
            op: "add".into(),
            dtype: DType::F32,
            shape_text: "n4".into(),
            attrs: Attrs::new(),
            device: "cpu".into(),
            residency: "resident".into(),
            threads: 2,
            old_s: None,
            new_s: None,
            ratio: None,
            ratio_ci: None,
            machine_ratio: None,
            p_slower: 1.0,
            verdict: verdict.name().into(),
            reason: String::new(),
        }
    }

    #[test]
    fn a_row_that_is_measured_no_more_is_no_pass() {
        let code = |verdicts: &[Change], lost| {
            regression_code(&verdicts.iter().copied().map(change).collect::<Vec<_>>(), lost)
        };
        assert_eq!(code(&[Change::Same, Change::NotComparable], false), 0);
        assert_eq!(code(&[Change::Same, Change::NotComparable], true), 4);
        assert_eq!(code(&[Change::Same, Change::Slower], true), 1);
        assert_eq!((code(&[Change::Ambiguous], false), code(&[], false)), (4, 4));
    }
}
