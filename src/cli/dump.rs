//! `verify --dump-kernels DIR`: every program that the request would build, as the driver's compiler gets it, what the
//! compiler said, and what it made.

use std::collections::BTreeSet;
use std::path::Path;

use crate::base::{Code, Error, Lang, Result};
use crate::device::Source;
use crate::device::probe::Rig;
use crate::kernel::{self, source};
use crate::op::OpDesc;

/// Writes `DIR/<device>/<op>-<dtype>-<variant>-<entry>-<hash>.{cl,cu,wgsl}`, beside it `.log` (what the build said, or the
/// error) and `.bin` or `.ptx` (the compiled form, where the driver gives one). Gives the number of texts.
pub(super) fn dump(rig: &Rig, cases: &[(&'static OpDesc, crate::base::Case)], folder: &str) -> Result<usize> {
    let mut seen = BTreeSet::new();
    for device in &rig.devices {
        let info = device.info();
        let folder = Path::new(folder).join(info.id.replace(':', "-"));
        for (op, case) in cases {
            let Ok(choice) = kernel::choose(op.kernels, case, info, None) else { continue };
            if choice.kernel.body.text().is_none() {
                continue;
            }
            for step in &choice.plan.steps {
                let text = source::assemble(choice.kernel, step, choice.lang)?;
                if !seen.insert((info.id.clone(), op.name, case.dtype, text.hash())) {
                    continue;
                }
                let extension = match text.lang {
                    Lang::OpenclC => "cl",
                    Lang::Wgsl => "wgsl",
                    _ => "cu",
                };
                let stem =
                    format!("{}-{}-{}-{}-{:016x}", op.name, case.dtype, choice.kernel.variant, text.entry, text.hash());
                write(&folder, &format!("{stem}.{extension}"), text.text.as_bytes())?;
                match device.build(Source::Text(&text), None) {
                    Ok(program) => {
                        write(&folder, &format!("{stem}.log"), format!("{:#?}\n", program.stats()).as_bytes())?;
                        if let Some(binary) = program.binary() {
                            let ptx =
                                binary.starts_with(b"//") || binary.windows(8).take(4096).any(|w| w == b".version");
                            let kind = if ptx { "ptx" } else { "bin" };
                            write(&folder, &format!("{stem}.{kind}"), binary)?;
                        }
                    }
                    Err(e) => write(&folder, &format!("{stem}.log"), format!("{e}\n").as_bytes())?,
                }
            }
        }
    }
    Ok(seen.len())
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let failed = |e: std::io::Error| Error::new(Code::Io, format!("--dump-kernels {}", folder.display())).caused_by(e);
    std::fs::create_dir_all(folder).map_err(failed)?;
    std::fs::write(folder.join(name), bytes).map_err(failed)
}
