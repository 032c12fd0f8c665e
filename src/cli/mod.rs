//! The command line: arguments to a configuration, a job, records to writers. The only layer that prints.
//!
//! stdout carries data (tables, JSON, TOML, CSV), stderr carries talk. Exit codes: 0 pass, 1 a finding, 2 usage or bad
//! input, 3 a required device is missing, 4 inconclusive, 5 internal error or crashed worker, 130 interrupted.

mod ablate;
mod args;
mod bench;
mod calibrate;
mod ceilings;
mod check;
mod commands;
mod cpu_blas;
mod devices;
mod drivers;
mod dump;
mod explain;
mod health;
mod kept;
mod output;
mod profile;
mod run;
mod sizes;
mod soak;
mod soak_args;
mod states;
mod trace;
mod trial;
mod verify;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::base::{Class, Code, Env, Error};

/// Exit code of an interrupted run (128 + SIGINT).
const INTERRUPTED: u8 = 130;

/// Runs one command line and gives its exit code.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let argv: Vec<OsString> = argv.into_iter().collect();
    let parsed = match args::Cli::try_parse_from(&argv) {
        Ok(parsed) => parsed,
        Err(e) => {
            // Help and version go to stdout with code 0, mistakes to stderr with code 2. A closed pipe is no error.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let command: Vec<String> = argv.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    cpu_blas::settle(&parsed.command);
    // Jobs run on a thread of their own, which the timing ones pin (commands::rig_of).
    let worker = std::thread::Builder::new()
        .name("gpuctl-driver".into())
        .stack_size(8 << 20)
        .spawn(move || Env::read().and_then(|env| commands::run(&parsed, &command, &env)));
    let result = match worker.map(std::thread::JoinHandle::join) {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(Error::new(Code::Internal, "a panic ended the run (its message is above)")),
        Err(e) => Err(Error::new(Code::Internal, "no thread for the job").caused_by(e)),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            output::talk(&format!("gpuctl: {e}"));
            tell_more(&e);
            ExitCode::from(exit_code(&e))
        }
    }
}

/// What is known beyond the message's one line: kernel, launch, memory, and all that the compiler said.
fn tell_more(e: &Error) {
    let context = e.context();
    let known = context.to_string();
    for line in known.lines().chain(context.log.iter().flat_map(|l| l.lines())) {
        output::talk(&format!("  {line}"));
    }
}

/// The exit code of an error that ended a run.
fn exit_code(e: &Error) -> u8 {
    match (e.code(), e.class()) {
        (Code::DeviceMissing | Code::DeviceDisabled | Code::NoDevice | Code::NoPlatform | Code::ContextCreate, _) => 3,
        (Code::Cancelled, _) => INTERRUPTED,
        (Code::ResultWrong, _) => 1,
        (_, Class::Usage | Class::Unsupported) => 2,
        (_, Class::Oom | Class::Transient | Class::Sticky | Class::Lost) => 1,
        (_, Class::Internal) => 5,
    }
}
