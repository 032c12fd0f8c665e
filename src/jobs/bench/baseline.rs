//! A run held against an earlier one: a verdict for every row.

use crate::base::blas::BlasInfo;
use crate::base::record::{BenchRecord, ChangeRecord, Host, SCHEMA, Status};
use crate::base::{Code, DeviceInfo, Document, Error, Record, Result};
use crate::measure::compare::{Change, Judged, Measured, Pair, Rule, judge};

/// Reads the JSON document of an earlier `bench`.
///
/// Errors: `BadArgument` for what is no such document or holds no row.
pub fn parse(text: &str) -> Result<Document> {
    let bad = |why: String| Error::new(Code::BadArgument, why);
    let doc: Document = serde_json::from_str(text).map_err(|e| bad(format!("no document of gpuctl bench: {e}")))?;
    if doc.schema != SCHEMA {
        return Err(bad(format!("layout {}, this gpuctl reads {SCHEMA}", doc.schema)));
    }
    if rows(&doc.records).next().is_none() {
        return Err(bad("it holds no row of bench".into()));
    }
    Ok(doc)
}

/// The rows of bench among records.
pub fn rows(records: &[Record]) -> impl Iterator<Item = &BenchRecord> {
    records.iter().filter_map(|r| match r {
        Record::Bench(row) => Some(&**row),
        _ => None,
    })
}

/// What differs between the machine of the baseline and this one, for the devices that both have; empty if nothing does.
pub fn differences(old: &Document, host: &Host, devices: &[DeviceInfo]) -> Vec<String> {
    let mut out = Vec::new();
    let mut differ = |what: String, old: &str, new: &str| {
        if old != new {
            out.push(format!("{what}: '{old}' then, '{new}' now"));
        }
    };
    differ("CPU".into(), &old.host.cpu, &host.cpu);
    differ("CPUs".into(), &old.host.cpus.to_string(), &host.cpus.to_string());
    let idles = |h: &Host| if h.awake { "kept awake" } else { "free to idle" };
    differ("processors".into(), idles(&old.host), idles(host));
    for d in devices {
        let Some(then) = old.devices.iter().find(|o| o.id == d.id) else { continue };
        differ(d.id.clone(), &then.name, &d.name);
        differ(format!("driver of {}", d.id), &then.driver, &d.driver);
        differ(format!("API of {}", d.id), &then.api, &d.api);
        let blas = |d: &DeviceInfo| d.facts.blas.as_ref().map_or("none".into(), BlasInfo::text);
        differ(format!("BLAS of {}", d.id), &blas(then), &blas(d));
        differ(format!("units of {}", d.id), &then.compute_units.to_string(), &d.compute_units.to_string());
    }
    out
}

/// What makes two rows the same measurement.
fn same(a: &BenchRecord, b: &BenchRecord) -> bool {
    let of = |r: &BenchRecord| {
        (r.subject.op.clone(), r.subject.dtype, r.subject.shape_text.clone(), r.subject.device.clone())
    };
    of(a) == of(b)
        && a.subject.attrs == b.subject.attrs
        && (&a.residency, a.k, a.region_s) == (&b.residency, b.k, b.region_s)
        && a.analysis.cache == b.analysis.cache
        && (a.subject.device != "cpu" || a.threads == b.threads)
}

/// Why a row cannot be held against its old one, if that is so.
fn hindrance(old: Option<&BenchRecord>, new: &BenchRecord) -> Option<String> {
    let Some(old) = old else { return Some("the baseline has no such row".into()) };
    lack(old, "the baseline's").or_else(|| lack(new, "this"))
}

/// Why a row cannot be held against any.
fn lack(row: &BenchRecord, whose: &str) -> Option<String> {
    if row.subject.status != Status::Ok {
        return Some(format!("{whose} row is {}: {}", row.subject.status.name(), row.subject.reason));
    }
    let one = row.process_medians_s.len() < 2;
    one.then(|| format!("{whose} row comes from one process, which says too little about another"))
}

/// The rows that could be held against others then and cannot now, each with its reason. One that has become so slow that it
/// is not measured any more has no time that could be called slower.
pub fn lost(old: &Document, new: &[BenchRecord]) -> Vec<String> {
    let why = |row: &BenchRecord| {
        let then = rows(&old.records).find(|o| same(o, row))?;
        let why = lack(row, "this").filter(|_| lack(then, "the baseline's").is_none())?;
        let s = &row.subject;
        Some(format!("{} {} {} on {} ({}): {why}", s.op, s.dtype, s.shape_text, s.device, row.residency))
    };
    new.iter().filter_map(why).collect()
}

fn measured(row: &BenchRecord) -> Measured {
    Measured {
        processes: row.process_medians_s.iter().map(|m| vec![*m]).collect(),
        speeds: row.machine_speeds.iter().map(|s| s.to_vec()).collect(),
    }
}

/// Judges every new row against the old one of the same device, op, dtype, shape, attributes, residency, state of the caches
/// and, on the CPU, threads.
pub fn compare(old: &Document, new: &[BenchRecord], rule: &Rule) -> Vec<ChangeRecord> {
    let olds: Vec<Option<&BenchRecord>> = new.iter().map(|n| rows(&old.records).find(|o| same(o, n))).collect();
    let reasons: Vec<Option<String>> = olds.iter().zip(new).map(|(o, n)| hindrance(*o, n)).collect();
    let sides: Vec<(Measured, Measured)> = olds
        .iter()
        .zip(new)
        .zip(&reasons)
        .map(|((o, n), reason)| match (o, reason) {
            (Some(o), None) => (measured(o), measured(n)),
            _ => Default::default(),
        })
        .collect();
    let pairs: Vec<Pair<'_>> =
        sides.iter().zip(new).map(|((old, new), row)| Pair { old, new, group: &row.subject.device }).collect();
    let judged = judge(&pairs, rule);
    let record =
        |(((old, new), reason), j): (((&Option<&BenchRecord>, &BenchRecord), Option<String>), Judged)| ChangeRecord {
            op: new.subject.op.clone(),
            dtype: new.subject.dtype,
            shape_text: new.subject.shape_text.clone(),
            attrs: new.subject.attrs.clone(),
            device: new.subject.device.clone(),
            residency: new.residency.clone(),
            threads: new.threads,
            old_s: old.and_then(|o| o.median_s),
            new_s: new.median_s,
            ratio: Some(j.ratio).filter(|v| v.is_finite()),
            ratio_ci: Some(j.ci).filter(|c| c[0].is_finite() && c[1].is_finite()),
            machine_ratio: j.machine.filter(|v| v.is_finite()),
            p_slower: j.p_slower,
            verdict: j.change.name().into(),
            reason: reason.unwrap_or_default(),
        };
    olds.iter().zip(new).zip(reasons).zip(judged).map(record).collect()
}

/// The rows worth measuring once more before anything is said of them.
pub fn suspects(changes: &[ChangeRecord]) -> Vec<usize> {
    let again = [Change::Slower.name(), Change::Faster.name(), Change::Ambiguous.name()];
    (0..changes.len()).filter(|i| again.contains(&changes[*i].verdict.as_str())).collect()
}

/// The new rows with the processes of their second measurement added. One that was not measured the second time, because its
/// result was wrong, its process died or it took too long, is as it was then: the first measurement alone decides nothing.
pub fn with_second(new: &[BenchRecord], second: &[BenchRecord]) -> Vec<BenchRecord> {
    let joined = |row: &BenchRecord| {
        let mut row = row.clone();
        match second.iter().find(|s| same(s, &row)) {
            Some(s) if s.subject.status == Status::Ok => {
                row.process_medians_s.extend(&s.process_medians_s);
                row.machine_speeds.extend(&s.machine_speeds);
            }
            Some(s) if row.subject.status == Status::Ok => {
                row.subject.status = s.subject.status;
                row.subject.reason = format!("measured again: {}", s.subject.reason);
                row.subject.error.clone_from(&s.subject.error);
            }
            _ => {}
        }
        row
    };
    new.iter().map(joined).collect()
}

/// The verdicts with both measurements of the new rows. A row that the second one alone does not show to have changed by
/// more than the margin is not called so: it was the machine, for as long as the first one lasted.
pub fn compare_again(old: &Document, new: &[BenchRecord], second: &[BenchRecord], rule: &Rule) -> Vec<ChangeRecord> {
    let asked = suspects(&compare(old, new, rule));
    let mut changes = compare(old, &with_second(new, second), rule);
    for (i, (change, row)) in changes.iter_mut().zip(new).enumerate() {
        let mean = |r: &BenchRecord| {
            let medians = &r.process_medians_s;
            (medians.iter().map(|m| m.ln()).sum::<f64>() / medians.len() as f64).exp()
        };
        let then = rows(&old.records).find(|r| same(r, row)).map(mean);
        let now = second.iter().find(|r| same(r, row) && r.subject.status == Status::Ok).map(mean);
        let told = [Change::Slower.name(), Change::Faster.name()].contains(&change.verdict.as_str());
        if told && now.is_none() && asked.contains(&i) {
            change.reason = format!("{} at first, and not measured again: interrupted", change.verdict);
            change.verdict = Change::Ambiguous.name().into();
        }
        let (Some(then), Some(now)) = (then, now) else { continue };
        let shown = match change.verdict.as_str() {
            v if v == Change::Slower.name() => now > then * rule.margin,
            v if v == Change::Faster.name() => now * rule.margin < then,
            _ => true,
        };
        if !shown {
            change.reason = format!("{} at first, but not when it was measured again", change.verdict);
            change.verdict = Change::Ambiguous.name().into();
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::record::{Phases, Subject};
    use crate::base::{Attrs, DType, Fill};

    /// Ten rows of ten sizes, each with these process medians and machine's speeds.
    fn run(medians: &[f64], speeds: &[[f64; 2]]) -> Vec<BenchRecord> {
        let op = crate::op::find("add").unwrap();
        let row = |n: u64| {
            let case = op.case(DType::F32, &[n], Attrs::new(), Fill::Uniform).unwrap();
            let mut subject = Subject::of(&case, n, "elements", &DeviceInfo::ordinary_gpu());
            subject.status = Status::Ok;
            BenchRecord {
                subject,
                residency: "resident".into(),
                k: 1,
                region_s: 50e-6,
                threads: 2,
                samples: 3,
                samples_s: Vec::new(),
                process_medians_s: medians.to_vec(),
                machine_speeds: speeds.to_vec(),
                between_processes: None,
                median_s: medians.first().copied(),
                ci_s: None,
                min_s: None,
                p95_s: None,
                p99_s: None,
                gflops: None,
                gbps: None,
                peak_fraction: None,
                phases_s: Phases::default(),
                analysis: Default::default(),
                speedup_vs_cpu: None,
                speedup_ci: None,
            }
        };
        (1..=10).map(row).collect()
    }

    fn document(rows: &[BenchRecord]) -> Document {
        let host = Host { cpu: String::new(), cpus: 2, memory_bytes: 0, os: String::new(), awake: false, system: None };
        let records = rows.iter().map(|r| Record::Bench(Box::new(r.clone()))).collect();
        Document {
            schema: SCHEMA,
            gpuctl: String::new(),
            command: Vec::new(),
            complete: true,
            exit_code: 0,
            host,
            devices: Vec::new(),
            absent: Vec::new(),
            records,
        }
    }

    fn verdicts(changes: &[ChangeRecord]) -> Vec<&str> {
        changes.iter().map(|c| c.verdict.as_str()).collect()
    }

    #[test]
    fn processors_that_were_free_to_idle_are_another_machine() {
        let old = document(&[]);
        assert_eq!(differences(&old, &old.host, &[]), [""; 0]);
        let now = Host { awake: true, ..old.host.clone() };
        assert_eq!(differences(&old, &now, &[]), ["processors: 'free to idle' then, 'kept awake' now"]);
    }

    const TIMES: [f64; 3] = [1.0, 1.001, 0.999];
    const SLOWER: [f64; 3] = [1.3, 1.301, 1.299];

    #[test]
    fn a_slower_machine_is_not_slower_code() {
        let old = document(&run(&TIMES, &[[1e9, 1e10]; 3]));
        let slower_machine = compare(&old, &run(&SLOWER, &[[1e9, 1e10 / 1.3]; 3]), &Rule::default());
        assert_eq!(verdicts(&slower_machine), ["AMBIGUOUS"; 10]);
        assert!((slower_machine[0].machine_ratio.unwrap() * 1.3 - 1.0).abs() < 1e-9);
        let slower_code = compare(&old, &run(&SLOWER, &[[1e9, 1e10]; 3]), &Rule::default());
        assert_eq!(verdicts(&slower_code), ["SLOWER"; 10]);
        // Speeds that only one run tells say nothing.
        let untold = compare(&old, &run(&SLOWER, &[]), &Rule::default());
        assert_eq!(verdicts(&untold), ["SLOWER"; 10]);
        assert_eq!(untold[0].machine_ratio, None);
    }

    /// Of calls that share a wait each takes less: held against others they would seem faster.
    #[test]
    fn rows_of_another_region_are_another_measurement() {
        let old = document(&run(&TIMES, &[]));
        let new: Vec<_> = run(&TIMES, &[]).into_iter().map(|r| BenchRecord { region_s: 5e-3, ..r }).collect();
        for change in compare(&old, &new, &Rule::default()) {
            assert_eq!((change.verdict.as_str(), change.old_s), (Change::NotComparable.name(), None));
        }
    }

    /// With cold caches everything is slower: held against hot ones it would seem a regression.
    #[test]
    fn rows_with_other_caches_are_another_measurement() {
        let with = |cache: &str, times: &[f64]| {
            let mut rows = run(times, &[]);
            rows.iter_mut().for_each(|r| r.analysis.cache = cache.into());
            rows
        };
        let hot = document(&with("hot", &TIMES));
        for change in compare(&hot, &with("cold", &SLOWER), &Rule::default()) {
            assert_eq!((change.verdict.as_str(), change.old_s), (Change::NotComparable.name(), None));
        }
        assert_eq!(verdicts(&compare(&hot, &with("hot", &SLOWER), &Rule::default())), ["SLOWER"; 10]);
    }

    /// A row in which something else than its time became known.
    fn ended(row: &BenchRecord, status: Status, reason: &str) -> BenchRecord {
        let mut row = row.clone();
        (row.subject.status, row.subject.reason) = (status, reason.into());
        row
    }

    #[test]
    fn what_is_not_measured_any_more_is_named() {
        let old = document(&run(&TIMES, &[]));
        let mut new = run(&TIMES, &[]);
        assert!(lost(&old, &new).is_empty());
        new[3] = ended(&new[3], Status::Skipped, "one call took 2 s, budget 1 s");
        new[4].process_medians_s.truncate(1);
        let named = lost(&old, &new);
        assert_eq!(named.len(), 2, "{named:?}");
        assert!(named[0].starts_with("add f32 n4 on "), "{named:?}");
        assert!(named[0].ends_with("(resident): this row is skipped: one call took 2 s, budget 1 s"), "{named:?}");
        // What was not measured then, and what the baseline does not have, is no loss.
        assert!(lost(&document(&new), &new).is_empty());
        let other: Vec<_> = new.into_iter().map(|r| BenchRecord { region_s: 5e-3, ..r }).collect();
        assert!(lost(&old, &other).is_empty());
    }

    /// A row that looks slower and is wrong in the fresh processes is neither slower nor right.
    #[test]
    fn what_goes_wrong_when_it_is_measured_again_is_kept() {
        let old = document(&run(&TIMES, &[]));
        let first = run(&SLOWER, &[]);
        let mut second = run(&SLOWER, &[]);
        second[2] = ended(&second[2], Status::Failed, "process 2: result-wrong: element 7 is 0e0, the CPU has 1e0");
        second[5] = ended(&second[5], Status::Skipped, "one call took 2 s, budget 1 s");
        let changes = compare_again(&old, &first, &second, &Rule::default());
        assert_eq!(changes.iter().filter(|c| c.verdict == "SLOWER").count(), 8);
        for (i, says) in
            [(2, "failed: measured again: process 2: result-wrong"), (5, "skipped: measured again: one call")]
        {
            assert_eq!(changes[i].verdict, Change::NotComparable.name());
            assert!(changes[i].reason.contains(says), "{}", changes[i].reason);
        }
        let rows = with_second(&first, &second);
        assert_eq!((rows[2].subject.status, rows[5].subject.status), (Status::Failed, Status::Skipped));
        assert!(rows[0].subject.status == Status::Ok && rows[0].process_medians_s.len() == 6);
        assert_eq!(lost(&old, &rows).len(), 2);
        // An interruption leaves rows that nobody looked at again.
        let cut = compare_again(&old, &first, &second[..2], &Rule::default());
        assert_eq!(cut.iter().filter(|c| c.verdict == "SLOWER").count(), 2);
        assert!(cut[7].verdict == "AMBIGUOUS" && cut[7].reason.contains("not measured again"), "{:?}", cut[7]);
    }

    #[test]
    fn what_is_not_seen_again_is_not_called_so() {
        let old = document(&run(&TIMES, &[]));
        let first = run(&SLOWER, &[]);
        assert_eq!(suspects(&compare(&old, &first, &Rule::default())).len(), 10);
        let again = compare_again(&old, &first, &run(&SLOWER, &[]), &Rule::default());
        assert_eq!(verdicts(&again), ["SLOWER"; 10]);
        assert!(again[0].reason.is_empty());
        // Nine processes were slow, three of them not: together still slower, but not when it was measured again.
        let first = run(&SLOWER.repeat(3), &[]);
        let passed = compare_again(&old, &first, &run(&[1.0, 1.0, 1.0], &[]), &Rule { alpha: 0.9, ..Rule::default() });
        assert_eq!(verdicts(&passed), ["AMBIGUOUS"; 10]);
        assert!(passed[0].reason.contains("SLOWER at first"), "{}", passed[0].reason);
    }
}
