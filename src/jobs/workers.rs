//! Fresh processes that measure: one number from one process says little about the next one. A worker is this program with
//! a hidden subcommand; it opens the devices once and answers each line of orders with a line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::base::sink::Cancel;
use crate::base::{Code, Error, Result};
use crate::jobs::inventory::ended;

/// What a killed process has for its end: a driver first takes back all that it had of a card.
pub(super) const GONE: Duration = Duration::from_secs(5);

/// How to start a worker: this program, its subcommand and arguments.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Number of workers, at least 1.
    pub processes: usize,
    /// Time after which an order is given up: a driver hangs.
    pub limit: Duration,
}

/// The worker's side: answers each line of orders with a line. Ends with its input, or where its output is closed: the
/// parent is gone.
pub(super) fn serve<A: Serialize>(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    mut answer: impl FnMut(&str) -> Result<A>,
) -> Result<()> {
    for line in input.lines() {
        let line = line.map_err(|e| Error::new(Code::Io, "the worker's orders").caused_by(e))?;
        let text = serde_json::to_string(&answer(&line)?)
            .map_err(|e| Error::new(Code::Internal, "an answer cannot be written").caused_by(e))?;
        if writeln!(output, "{text}").and_then(|()| output.flush()).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// A process and its lines.
pub(super) struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Worker {
    /// Starts worker `number`. Errors: `WorkerCrashed` if there is no such program.
    pub(super) fn start(start: &Start, number: usize) -> Result<Self> {
        let failed = |e: std::io::Error| {
            Error::new(Code::WorkerCrashed, format!("cannot start {}", start.program.display())).caused_by(e)
        };
        let mut command = Command::new(&start.program);
        command.args(&start.arguments).args(["--worker", &number.to_string()]);
        // Its devices say on stderr what the parent's have said already.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // A group of its own: Ctrl-C at the terminal reaches the parent alone, which then ends the worker.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(failed)?;
        let (send, answers) = sync_channel(16);
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    if !line.is_ok_and(|l| send.send(l).is_ok()) {
                        break;
                    }
                }
            });
        }
        Ok(Worker { orders: child.stdin.take(), child, answers })
    }

    /// Sends an order and waits for its answer.
    ///
    /// Errors: `WorkerCrashed` for a worker that died or gave no answer in time (it is ended), `Cancelled`.
    pub(super) fn ask<A: DeserializeOwned>(&mut self, order: &str, limit: Duration, cancel: &Cancel) -> Result<A> {
        let crashed = |worker: &mut Self, how: &str| {
            let _ = worker.child.kill();
            let end = ended(&mut worker.child, GONE).map_or_else(|| "it cannot be ended".into(), |s| s.to_string());
            Error::new(Code::WorkerCrashed, format!("a process that measures {how} ({end})"))
        };
        let sent = self.orders.as_mut().is_some_and(|o| writeln!(o, "{order}").and_then(|()| o.flush()).is_ok());
        if !sent {
            return Err(crashed(self, "takes no orders"));
        }
        let begin = Instant::now();
        loop {
            match self.answers.recv_timeout(Duration::from_millis(20)) {
                // Lines that are no answer are a driver's chatter.
                Ok(line) => {
                    if let Ok(answer) = serde_json::from_str(&line) {
                        return Ok(answer);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(crashed(self, "ended")),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if cancel.raised() {
                return Err(Error::new(Code::Cancelled, "interrupted while it was measured"));
            }
            if begin.elapsed() > limit {
                return Err(crashed(self, &format!("gave no answer in {:.0} s", limit.as_secs_f64())));
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.orders.take());
        // It sleeps in its last read or is in the middle of an order that nobody waits for.
        let _ = self.child.kill();
        // A process that hangs in the kernel does not even end of that; it is left behind.
        ended(&mut self.child, GONE);
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::print_stderr, reason = "a skip is named")]
mod tests {
    use super::*;

    /// A driver that hangs in the kernel keeps its process, and not the one that measures with it.
    #[test]
    fn a_worker_that_cannot_be_killed_holds_nobody() {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stress/held.py").into();
        let limit = Duration::from_secs(20);
        let start = Start { program, arguments: Vec::new(), processes: 1, limit };
        let skip = |why: &str| eprintln!("skipped: {why}; tests/stress/killed.rs insists where GPUCTL_REQUIRE is set");
        let Ok(mut worker) = Worker::start(&start, 0) else { return skip("no Python") };
        let held: Result<serde_json::Value> = worker.ask("", limit, &Cancel::new());
        let Some(holder) = held.ok().and_then(|h| h["held"].as_u64()) else { return skip("no process may be traced") };
        let begun = Instant::now();
        let e = worker.ask::<serde_json::Value>("", Duration::from_millis(50), &Cancel::new()).unwrap_err();
        assert!(e.code() == Code::WorkerCrashed && e.to_string().contains("it cannot be ended"), "{e}");
        drop(worker);
        let took = begun.elapsed();
        let killed = Command::new("kill").args(["-KILL", &holder.to_string()]).status().unwrap();
        assert!(killed.success() && took > GONE && took < 6 * GONE, "{took:?}");
    }
}
