//! `--cpu-blas`: which commands take it, and what must be settled before a library is opened.

use crate::base::blas::CpuBlas;
use crate::base::{Code, Error, Result, os};

use super::args::Command;

/// Settings that libraries read once, when they are opened: how long their threads look for work after a call before they sleep.
/// By default that is some 15 ms (libgomp), 30 ms (OpenBLAS) or 200 ms (Intel's OpenMP), in which they take the processors from
/// whatever is measured next. Here it is about 0.1 ms: calls that follow each other still find them awake.
const PATIENCE: [(&str, &str); 3] =
    [("OPENBLAS_THREAD_TIMEOUT", "18"), ("GOMP_SPINCOUNT", "2000"), ("KMP_BLOCKTIME", "1")];

/// What a command line asks for. Errors: `BadArgument` for an empty value, and where the CPU keeps to its own kernels.
pub(super) fn asked(command: &Command) -> Result<CpuBlas> {
    let text = match command {
        Command::Devices(a) => &a.cpu_blas,
        Command::DevicesWorker(w) => &w.of.cpu_blas,
        Command::TrialWorker(w) => &w.cpu_blas,
        Command::Bench(a) => &a.common.cpu_blas,
        Command::BenchWorker(w) => &w.of.common.cpu_blas,
        Command::Calibrate(a) => &a.common.cpu_blas,
        Command::CalibrateWorker(w) => &w.of.common.cpu_blas,
        Command::Verify(a) => &a.common.cpu_blas,
        Command::Run(a) => &a.cpu_blas,
        Command::Profile(p) => match &p.what {
            super::args::ProfileCommand::Why(a) => &a.cpu_blas,
            _ => return Ok(CpuBlas::Own),
        },
        Command::Stress(a) => {
            let asked = CpuBlas::parse(&a.common.cpu_blas)?;
            return if asked == CpuBlas::Own {
                Ok(asked)
            } else {
                let why = "--cpu-blas: stress runs the CPU's own kernels; `verify` and `bench` run a library's";
                Err(Error::new(Code::BadArgument, why))
            };
        }
        Command::Explain(_) | Command::ProbeWorker { .. } | Command::StressWorker { .. } => return Ok(CpuBlas::Own),
    };
    CpuBlas::parse(text)
}

/// Has a library's idle threads sleep soon, unless the user has set otherwise. To be called before there are other threads.
pub(super) fn settle(command: &Command) {
    if asked(command).is_ok_and(|blas| blas != CpuBlas::Own) {
        PATIENCE.iter().for_each(|(name, value)| os::default_variable(name, value));
    }
}
