//! What a code means: errors of gpuctl, statuses of the APIs, findings about a card, quirks of drivers, verdicts of calibrate.
//! Everything is read from the tables that the rest of gpuctl works by.

use crate::base::api::{Api, Meaning, Row};
use crate::base::record::ExplainRecord;
use crate::base::{Class, Code, Error, Result, Severity};
use crate::device::quirks;
use crate::engine::Strategy;
use crate::profile::Verdict;

use super::health::{Grade, KINDS, Kind};

const fn class_name(class: Class) -> &'static str {
    match class {
        Class::Usage => "usage",
        Class::Unsupported => "unsupported",
        Class::Oom => "oom",
        Class::Transient => "transient",
        Class::Sticky => "sticky",
        Class::Lost => "lost",
        Class::Internal => "internal",
    }
}

const fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Error => "error",
        Severity::Critical => "critical",
    }
}

/// How a status is written: `cuda:700 CUDA_ERROR_ILLEGAL_ADDRESS`.
fn status_text(api: Api, row: &Row) -> String {
    match row.number {
        Some(number) => format!("{}:{number} {}", api.name(), row.name),
        None => format!("{}:{}", api.name(), row.name),
    }
}

fn error(code: Code) -> ExplainRecord {
    let row = code.row();
    let statuses = Api::ALL.into_iter().flat_map(|api| {
        let of = api.rows().iter().filter(move |r| r.meaning == Meaning::Is(code));
        of.map(move |r| status_text(api, r))
    });
    ExplainRecord {
        name: row.name.into(),
        what: "error".into(),
        class: Some(class_name(row.class).into()),
        severity: Some(severity_name(row.severity).into()),
        means: row.message.into(),
        does: Strategy::text(code).into(),
        next: row.next.into(),
        statuses: statuses.collect(),
        ..ExplainRecord::default()
    }
}

fn status(api: Api, row: &Row) -> ExplainRecord {
    let common = ExplainRecord {
        name: row.name.into(),
        what: "status".into(),
        api: Some(api.name().into()),
        number: row.number,
        ..ExplainRecord::default()
    };
    match row.meaning {
        Meaning::Is(code) => {
            let code = error(code);
            ExplainRecord {
                code: Some(code.name),
                class: code.class,
                severity: code.severity,
                means: code.means,
                does: code.does,
                next: code.next,
                ..common
            }
        }
        Meaning::OfCall => ExplainRecord {
            means: "the API refused the call; what that means depends on what was asked for".into(),
            does: "the error is that of the call: compile-failed, alloc-too-large, ..; never one that is tried again"
                .into(),
            next: "see the error's own code".into(),
            ..common
        },
    }
}

fn finding(kind: &Kind) -> ExplainRecord {
    ExplainRecord {
        name: kind.code.into(),
        what: "finding".into(),
        severity: Some(kind.grade.name().into()),
        means: format!("`devices --health` found this about the card; it concerns: {}", kind.category),
        does: match kind.grade {
            Grade::Notice => "it is told".into(),
            Grade::Warning | Grade::Critical => "`devices --health` ends with exit code 1".into(),
        },
        next: kind.next.into(),
        ..ExplainRecord::default()
    }
}

fn quirk(row: &quirks::Row) -> ExplainRecord {
    ExplainRecord {
        name: row.code.into(),
        what: "quirk".into(),
        api: Some(row.backend.name().into()),
        means: format!("{}: {} ({})", row.kind, row.what, row.source),
        does: row.answer.into(),
        ..ExplainRecord::default()
    }
}

fn verdict(v: Verdict) -> ExplainRecord {
    let (means, next) = match v {
        Verdict::Always => ("the device wins at every measured size", ""),
        Verdict::Never => ("the CPU wins at every measured size", ""),
        Verdict::Crossing => ("the device wins from the threshold on", ""),
        Verdict::NonMonotone => (
            "the device wins at some sizes and loses again at larger ones: no threshold describes it",
            "raise --budget; `gpuctl profile set rule=curve FILE` places calls by cost curves",
        ),
        Verdict::Inconclusive => ("the intervals never separate", "raise --budget, or measure on a quiet machine"),
        Verdict::Unmeasured => ("nothing was measured", "calibrate this op, dtype and residency"),
        Verdict::Unsafe => (
            "the device's results were wrong, so its speed does not matter",
            "run `gpuctl verify --op OP --device ID`; update the driver",
        ),
    };
    let gpu = matches!(v, Verdict::Always | Verdict::Crossing);
    ExplainRecord {
        name: v.name().into(),
        what: "verdict".into(),
        means: means.into(),
        does: if gpu { "calls from the threshold on go to the device" } else { "calls go to the CPU" }.into(),
        next: next.into(),
        ..ExplainRecord::default()
    }
}

/// All codes but the statuses of APIs.
pub fn codes() -> Vec<ExplainRecord> {
    let errors = Code::ALL.iter().map(|c| error(*c));
    let findings = KINDS.iter().map(finding);
    let quirks = quirks::ROWS.iter().map(quirk);
    errors.chain(findings).chain(quirks).chain(Verdict::ALL.into_iter().map(verdict)).collect()
}

/// All statuses of an API.
pub fn statuses(api: Api) -> Vec<ExplainRecord> {
    api.rows().iter().map(|r| status(api, r)).collect()
}

/// What a text names: a code, an API's status by its name (`CL_OUT_OF_RESOURCES`), by `API:NUMBER` (`cuda:700`) or by its
/// number alone, or an API, which stands for all its statuses. A number alone may be several.
///
/// Errors: `BadArgument` with the names that are nearest.
pub fn find(text: &str) -> Result<Vec<ExplainRecord>> {
    let asked = text.trim().to_lowercase();
    if let Some(api) = Api::ALL.into_iter().find(|a| a.name() == asked) {
        return Ok(statuses(api));
    }
    let (api, rest) = match asked.split_once(':') {
        Some((name, rest)) => (Api::ALL.into_iter().find(|a| a.name() == name), rest),
        None => (None, asked.as_str()),
    };
    let number = rest.parse::<i32>().ok().filter(|_| api.is_some() || !asked.contains(':'));
    let mut all = if asked.contains(':') { Vec::new() } else { codes() };
    all.extend(Api::ALL.into_iter().filter(|a| api.is_none_or(|b| *a == b)).flat_map(statuses));
    let is = |r: &ExplainRecord| match number {
        Some(n) => r.number == Some(n),
        None => r.name.to_lowercase() == rest || r.name.to_lowercase() == asked,
    };
    let found: Vec<ExplainRecord> = all.iter().filter(|r| is(r)).cloned().collect();
    if !found.is_empty() {
        return Ok(found);
    }
    if let (Some(api), Some(n)) = (api, number) {
        let why = format!("no header of {} that gpuctl knows has {n}; as an error it is unknown-status", api.name());
        return Err(Error::new(Code::BadArgument, why));
    }
    let near = nearest(rest, &all);
    let near = if near.is_empty() { "`gpuctl explain` lists all".into() } else { format!("near: {}", near.join(", ")) };
    Err(Error::new(Code::BadArgument, format!("there is no code '{text}'; {near}")))
}

/// Names that contain the text or are a few letters away, nearest first.
fn nearest(text: &str, all: &[ExplainRecord]) -> Vec<String> {
    let mut near: Vec<(usize, &str)> = all
        .iter()
        .map(|r| {
            let name = r.name.to_lowercase();
            let within = text.len() > 2 && name.contains(text);
            (if within { 0 } else { edits(text, &name) }, r.name.as_str())
        })
        .filter(|(away, name)| *away <= 1 + name.len() / 5)
        .collect();
    near.sort_by_key(|n| n.0);
    near.dedup_by_key(|n| n.1);
    near.into_iter().take(6).map(|n| n.1.to_string()).collect()
}

/// Letters to insert, remove or replace (Levenshtein).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, above) in b.iter().zip(row.iter_mut().skip(1)) {
            let best = (diagonal + usize::from(x != *y)).min(left + 1).min(*above + 1);
            diagonal = *above;
            *above = best;
            left = best;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        find(text).unwrap().iter().map(|r| format!("{} {}", r.what, r.name)).collect()
    }

    #[test]
    fn everything_that_is_listed_is_found_by_its_name_and_says_something() {
        let mut all = codes();
        all.extend(Api::ALL.into_iter().flat_map(statuses));
        assert!(all.len() > 300, "{}", all.len());
        for r in &all {
            let found = find(&r.name).unwrap_or_else(|e| panic!("{e}"));
            assert!(found.contains(r), "{}", r.name);
            assert!(!r.means.is_empty() && !r.does.is_empty(), "{r:?}");
            if let (Some(api), Some(number)) = (&r.api, r.number) {
                assert_eq!(find(&format!("{api}:{number}")).unwrap(), std::slice::from_ref(r));
            }
        }
    }

    #[test]
    fn a_status_is_found_by_each_of_its_names() {
        for text in ["CL_OUT_OF_RESOURCES", "cl_out_of_resources", "opencl:-5", "opencl:CL_OUT_OF_RESOURCES", "-5"] {
            assert_eq!(names(text), ["status CL_OUT_OF_RESOURCES"], "{text}");
        }
        let r = &find("cuda:700").unwrap()[0];
        assert_eq!((r.code.as_deref(), r.class.as_deref()), (Some("illegal-address"), Some("sticky")));
        assert_eq!(names("3").len(), 3, "CUDA's, NVRTC's and cuBLAS's");
        assert_eq!(names("wgpu:Error::OutOfMemory"), ["status Error::OutOfMemory"]);
        assert_eq!(names("Error::OutOfMemory"), ["status Error::OutOfMemory"]);
        assert_eq!(names("cublas").len(), 9);
        assert!(find("illegal-address").unwrap()[0].statuses.contains(&"cuda:700 CUDA_ERROR_ILLEGAL_ADDRESS".into()));
        assert_eq!(names("ecc-off"), ["finding ecc-off"]);
        assert_eq!(names("pocl-binary"), ["quirk pocl-binary"]);
        assert_eq!(names("non-monotone"), ["verdict non-monotone"]);
    }

    #[test]
    fn what_is_unknown_has_near_names() {
        for (text, near) in [
            ("ilegal-adress", "illegal-address"),
            ("CL_OUT_OF_RESOURCE", "CL_OUT_OF_RESOURCES"),
            ("memory", "out-of-device-memory"),
            ("cuda:CUDA_ERROR_ASERT", "CUDA_ERROR_ASSERT"),
        ] {
            let e = find(text).unwrap_err();
            assert!(e.code() == Code::BadArgument && e.detail().contains(near), "{text}: {e}");
        }
        assert!(find("zzzzzz").unwrap_err().detail().contains("lists all"));
        assert!(find("").unwrap_err().detail().contains("''"));
        assert!(find("cuda:12345").unwrap_err().detail().contains("unknown-status"));
        assert!(find("vulkan:3").is_err());
        assert_eq!((edits("", "abc"), edits("kitten", "sitting"), edits("same", "same")), (3, 3, 0));
    }
}
