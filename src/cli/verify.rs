//! `verify`: cases and self-test, tables, journal of passed cases.

use std::collections::BTreeMap;

use crate::base::record::{Status, VerifyRecord};
use crate::base::{Code, DType, Error, Record, Result};
use crate::device::cpu::Pin;
use crate::device::telemetry::Telemetry;
use crate::engine::KernelCache;
use crate::jobs::verify;
use crate::op::{self, Tier, case};
use crate::report;

use super::args;
use super::commands::{Ctx, cancel_on_signals, dtypes, ops};
use super::output::{self, CliSink};

/// Cases that are done, one a line, for runs that go on where another stopped.
struct Journal {
    file: std::fs::File,
    broken: bool,
    done: verify::Done,
}

impl Journal {
    fn read(path: &str) -> Result<std::collections::HashSet<String>> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(text.lines().map(str::to_string).collect()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Default::default()),
            Err(e) => Err(Error::new(Code::Io, format!("--resume {path}")).caused_by(e)),
        }
    }
    fn open(path: &str, done: verify::Done) -> Result<Self> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|e| Error::new(Code::Io, format!("--resume {path}")).caused_by(e))?;
        Ok(Journal { file, broken: false, done })
    }
    /// Notes the case before this record's, once that is complete.
    fn add(&mut self, r: &VerifyRecord) {
        let key = self.done.add(r);
        self.note(key);
    }
    /// A case without a key, or whose line cannot be written, runs again next time.
    fn note(&mut self, key: Option<String>) {
        use std::io::Write;
        let Some(key) = key.filter(|_| !self.broken) else { return };
        if let Err(e) = writeln!(self.file, "{key}") {
            self.broken = true;
            output::talk(&format!("--resume: {e}; later cases are not noted"));
        }
    }
}

/// Records come as whole cases: the last one is complete, too.
impl Drop for Journal {
    fn drop(&mut self) {
        let key = self.done.end();
        self.note(key);
    }
}

/// The published limits that results are judged by, one per line.
fn limits_text() -> String {
    let mut text = String::from("function  language  dtype  limit               source\n");
    for r in op::limits::LIMITS {
        let (lang, limit) = (format!("{:?}", r.lang), format!("{:?}", r.limit));
        text.push_str(&format!("{:<8}  {lang:<8}  {:<5}  {limit:<18}  {}\n", r.function, r.dtype, r.source));
    }
    text
}

/// One line per device, op and dtype: cases by status, the largest error, the strict line.
fn verify_table(records: &[Record]) -> String {
    #[derive(Default)]
    struct Line {
        ok: u64,
        failed: u64,
        other: u64,
        max_ulp: f64,
        strict: Option<bool>,
        variant: String,
        why: String,
    }
    let mut order = Vec::new();
    let mut lines: BTreeMap<(String, String, DType), Line> = BTreeMap::new();
    for record in records {
        let Record::Verify(v) = record else { continue };
        let key = (v.subject.device.clone(), v.subject.op.clone(), v.subject.dtype);
        if !order.contains(&key) {
            order.push(key.clone());
        }
        let line = lines.entry(key).or_default();
        match v.subject.status {
            Status::Ok => line.ok += 1,
            Status::Failed | Status::Suspect => line.failed += 1,
            Status::Unsupported | Status::Skipped => {
                line.other += 1;
                line.why.clone_from(&v.subject.reason);
            }
        }
        if !v.subject.variant.is_empty() && !line.variant.split(' ').any(|x| x == v.subject.variant) {
            line.variant = format!("{} {}", line.variant, v.subject.variant).trim().to_string();
        }
        line.max_ulp = line.max_ulp.max(v.max_ulp);
        if let Some(met) = v.strict_met {
            line.strict = Some(line.strict.unwrap_or(true) && met);
        }
    }
    order.sort_by_key(|k| k.0.clone());
    let mut text =
        String::from("device      op         dtype  kernel             ok  failed  other  max ulp  strict line\n");
    for key in order {
        let Some(line) = lines.get(&key) else { continue };
        let strict = match line.strict {
            Some(true) => "met",
            Some(false) => "not met",
            None => "-",
        };
        let why = if line.other > 0 { format!("  {}", line.why) } else { String::new() };
        text.push_str(&format!(
            "{:<10}  {:<9}  {:<5}  {:<15}  {:>4}  {:>6}  {:>5}  {:>7}  {strict:<7}{why}\n",
            key.0,
            key.1,
            key.2,
            line.variant,
            line.ok,
            line.failed,
            line.other,
            crate::base::units::three(line.max_ulp)
        ));
    }
    text.trim_end().to_string()
}

impl Ctx<'_> {
    pub(super) fn verify(&self, a: &args::Verify) -> Result<u8> {
        if a.limits {
            output::data(&limits_text())?;
            return Ok(0);
        }
        if a.self_test {
            return self.self_test(a);
        }
        let cfg = verify::VerifyConfig {
            ops: match &a.op {
                Some(text) => ops(text)?,
                None => op::all().collect(),
            },
            dtypes: a.dtype.as_deref().map(dtypes).transpose()?,
            tier: match a.tier.as_str() {
                "smoke" => Tier::Smoke,
                "full" => Tier::Full,
                "exhaustive" => Tier::Exhaustive,
                other => {
                    let why = format!("--tier {other}: expected smoke, full or exhaustive");
                    return Err(Error::new(Code::BadArgument, why));
                }
            },
            case: a.case.as_deref().map(case::parse).transpose()?,
            variant: a.variant.clone(),
            all_variants: a.all_variants,
            done: a.resume.as_deref().map(Journal::read).transpose()?.unwrap_or_default(),
            watch: self.env.debug_kernels,
            own: verify::OwnBound::new(a.rtol, a.atol)?,
            require_big: match a.require.as_deref() {
                None => false,
                Some("big") => true,
                Some(other) => {
                    return Err(Error::new(Code::BadArgument, format!("--require {other}: only big can be required")));
                }
            },
            save_failing: a.save_failing.clone(),
            kernels: KernelCache::of(self.env),
            telemetry: Some(Telemetry::cards),
            mutant: None,
            off: None,
        };
        let cancel = cancel_on_signals()?;
        let rig = self.rig(&a.common, Pin::Free)?;
        if let Some(folder) = &a.dump_kernels {
            let texts = super::dump::dump(&rig, &verify::cases(&cfg)?, folder)?;
            output::talk(&format!("{texts} kernel texts written to {folder}"));
            return Ok(if texts > 0 { 0 } else { 4 });
        }
        let json_on_stdout = a.common.json.as_deref() == Some("-");
        let verbose = a.verbose || cfg.case.is_some();
        let open = |path| Journal::open(path, verify::Done::new(&cfg, rig.devices.iter().map(|d| d.info())));
        let mut journal = a.resume.as_deref().map(open).transpose()?;
        let mut sink = CliSink::new(
            a.common.quiet,
            !json_on_stdout,
            Box::new(move |r| {
                if let (Some(j), Record::Verify(v)) = (&mut journal, r) {
                    j.add(v);
                }
                match r {
                    Record::Verify(v) if !json_on_stdout && (verbose || v.subject.status == Status::Failed) => {
                        Some(verify::line(v))
                    }
                    Record::Verify(v) if v.subject.status == Status::Failed => Some(verify::line(v)),
                    Record::Health(h) => Some(verify::card_line(h)),
                    _ => None,
                }
            }),
        );
        let summary = verify::run(&cfg, &rig, &mut sink, &cancel)?;
        let code = if summary.cancelled { super::INTERRUPTED } else { summary.exit_code() };
        let devices: Vec<String> = rig.devices.iter().map(|d| d.info().id.clone()).collect();
        let mut last = format!(
            "{} on {}: {} passed, {} failed, {} unsupported, {} skipped; {} elements compared",
            if code == 0 {
                "PASS"
            } else if summary.failed + summary.faults > 0 {
                "FAIL"
            } else {
                "INCONCLUSIVE"
            },
            devices.join(" "),
            summary.passed,
            summary.failed,
            summary.unsupported,
            summary.skipped,
            summary.compared
        );
        if summary.resumed > 0 {
            last.push_str(&format!("; {} had passed before", summary.resumed));
        }
        if let Some(own) = cfg.own {
            last.push_str(&format!("; {}, {} passed beyond gpuctl's own bound", own.words(), summary.beyond));
        }
        if summary.faults > 0 {
            last.push_str(&format!("; {} card(s) failed meanwhile", summary.faults));
        }
        if !summary.idle.is_empty() {
            last.push_str(&format!("; nothing was compared on {}", summary.idle.join(" ")));
        }
        if !json_on_stdout {
            sink.print(&verify_table(&sink.records));
        }
        sink.print(&last);
        let records = sink.finish()?;
        if let Some(path) = &a.junit {
            output::file(path, &report::junit::verify(&records, summary.cancelled))?;
        }
        let infos = rig.devices.iter().map(|d| d.info().clone()).collect();
        let doc = self.document(infos, rig.absent, records, !summary.cancelled, code);
        self.write_json(a.common.json.as_deref(), &doc)?;
        Ok(code)
    }

    fn self_test(&self, a: &args::Verify) -> Result<u8> {
        let cancel = cancel_on_signals()?;
        // Without a choice every device takes part, software too: most faults in texts need one.
        let mut common = a.common.clone();
        common.device.get_or_insert_with(|| "all".into());
        let rig = self.rig(&common, Pin::Free)?;
        let json_on_stdout = a.common.json.as_deref() == Some("-");
        let mut sink = CliSink::new(
            a.common.quiet,
            !json_on_stdout,
            Box::new(move |r| match r {
                Record::SelfTest(s) if !json_on_stdout => Some(verify::self_test_line(s)),
                _ => None,
            }),
        );
        let summary = verify::self_test(&rig, None, None, &mut sink, &cancel)?;
        let code = if summary.cancelled { super::INTERRUPTED } else { summary.exit_code() };
        let word = match code {
            0 => "PASS",
            1 => "FAIL",
            _ => "INCONCLUSIVE",
        };
        sink.print(&format!(
            "{word}: {} faults caught, {} legal deviations passed, {} not accounted for, {} not run",
            summary.caught, summary.allowed, summary.wrong, summary.not_run
        ));
        let records = sink.finish()?;
        let infos = rig.devices.iter().map(|d| d.info().clone()).collect();
        let doc = self.document(infos, rig.absent, records, !summary.cancelled, code);
        self.write_json(a.common.json.as_deref(), &doc)?;
        Ok(code)
    }
}
