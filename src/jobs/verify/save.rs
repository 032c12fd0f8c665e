//! `--save-failing DIR`: the arrays of each failing case, so that they can be looked at and run elsewhere.
//!
//! `DIR/<case>@<device>+<variant>/` gets `in0-<operand>.npy`, ... as they went in (bf16 as the u2 of its bits), `got0-...` as
//! they came out, `again0-...` where the second run differed, and `want0-...`: the oracle's values in f64, integers as i64 or
//! u64. Where a sample was judged, `want` holds the sample and `at0-...` the flat indices of its elements. `case.txt` names
//! the case, the finding and the command that repeats it.

use std::path::{Path, PathBuf};

use crate::base::record::VerifyRecord;
use crate::base::rng::fnv1a64;
use crate::base::{Code, Error, Exact, HostTensor, Result, npy};
use crate::op::{OpDesc, Role};

use super::oracle::{Answer, Oracle};

/// Longest name of a folder that is kept as it is; file systems take 255 bytes.
const LONGEST: usize = 200;

/// Saves one failing case. `runs` are the results of both runs, if it came that far.
pub(super) fn save(
    dir: &Path,
    op: &OpDesc,
    record: &VerifyRecord,
    oracle: &Oracle,
    runs: Option<&[Vec<HostTensor>; 2]>,
) -> Result<PathBuf> {
    let folder = dir.join(folder_of(record));
    std::fs::create_dir_all(&folder).map_err(|e| Error::new(Code::Io, folder.display().to_string()).caused_by(e))?;
    let names = |role: fn(Role) -> bool| op.operands.iter().filter(move |o| role(o.role)).map(|o| o.name);
    let mut arrays: Vec<(PathBuf, HostTensor)> = Vec::new();
    let mut add = |stem: &str, i: usize, name: &str, t: HostTensor| {
        arrays.push((folder.join(format!("{stem}{i}-{name}.npy")), t));
    };
    for (i, (name, t)) in names(|r| r != Role::Out).zip(&oracle.inputs).enumerate() {
        add("in", i, name, t.clone());
    }
    for (i, (name, answer)) in names(|r| r != Role::In).zip(&oracle.answers).enumerate() {
        let shape = runs.and_then(|r| r[0].get(i)).map(|t| t.shape.as_slice());
        add("want", i, name, wanted(answer, shape)?);
        if let Some(at) = &answer.at {
            add("at", i, name, HostTensor::from_slice(at, &[at.len() as u64])?);
        }
        let Some((first, second)) = runs.and_then(|r| Some((r[0].get(i)?, r[1].get(i)?))) else { continue };
        add("got", i, name, first.clone());
        if first.bytes() != second.bytes() {
            add("again", i, name, second.clone());
        }
    }
    let files: Vec<(&Path, &HostTensor)> = arrays.iter().map(|(p, t)| (p.as_path(), t)).collect();
    npy::write(&files)?;
    let note = folder.join("case.txt");
    std::fs::write(&note, text(record)).map_err(|e| Error::new(Code::Io, note.display().to_string()).caused_by(e))?;
    Ok(folder)
}

/// A name that every file system takes, and that two cases never share.
fn folder_of(r: &VerifyRecord) -> String {
    let variant = if r.subject.variant.is_empty() { String::new() } else { format!("+{}", r.subject.variant) };
    let full = format!("{}@{}{variant}", r.case, r.subject.device);
    let name: String = full
        .chars()
        .map(|c| match c {
            '/' => '_',
            ':' => '-',
            c if c.is_ascii_graphic() => c,
            _ => '_',
        })
        .collect();
    if name.len() <= LONGEST { name } else { format!("{}-{:016x}", &name[..LONGEST], fnv1a64(full.as_bytes())) }
}

/// The oracle's values as a tensor, in the output's shape unless it is a sample.
fn wanted(answer: &Answer, shape: Option<&[u64]>) -> Result<HostTensor> {
    let values = &answer.reference.values;
    let flat = [values.len() as u64];
    let shape = shape.filter(|_| answer.at.is_none()).unwrap_or(&flat);
    let whole: Option<Vec<i128>> = values.iter().map(|v| if let Exact::I(i) = v { Some(*i) } else { None }).collect();
    match whole {
        Some(ints) if !ints.is_empty() => {
            if let Ok(signed) = ints.iter().map(|v| i64::try_from(*v)).collect::<Result<Vec<_>, _>>() {
                return HostTensor::from_slice(&signed, shape);
            }
            if let Ok(unsigned) = ints.iter().map(|v| u64::try_from(*v)).collect::<Result<Vec<_>, _>>() {
                return HostTensor::from_slice(&unsigned, shape);
            }
            HostTensor::from_slice(&ints.iter().map(|v| *v as f64).collect::<Vec<_>>(), shape)
        }
        _ => HostTensor::from_slice(&values.iter().map(|v| v.to_f64()).collect::<Vec<_>>(), shape),
    }
}

fn text(r: &VerifyRecord) -> String {
    let s = &r.subject;
    format!(
        "{}\ndevice: {} ({})\nvariant: {}\nfinding: {}\nbound: {}\nrerun: {}\n",
        r.case, s.device, s.uid, s.variant, s.reason, r.tolerance, r.rerun
    )
}
