//! Which drivers a command may load: those that answer where a process of its own asks them, before the command's process loads
//! any. So a driver that hangs or crashes takes no command with it.

use std::ffi::OsString;
use std::path::Path;

use crate::base::env::of_drivers;
use crate::base::{Absence, Backend, Code, Env};
use crate::device::{icd, manifest};
use crate::engine::answered::Answered;

use super::apart::{Driver, Limit, Loadable};
use super::{Answer, Asker, Outcome, Waits};

/// What a process has to do before it loads drivers. What it names is there as long as this is.
#[derive(Debug, Default)]
pub struct Sound {
    left_out: Vec<Absence>,
    without: Vec<Backend>,
    limits: Vec<Limit>,
}

impl Sound {
    /// Drivers that are not to be loaded, and why.
    pub fn left_out(&self) -> &[Absence] {
        &self.left_out
    }
    /// APIs of which nothing is to be loaded.
    pub fn without(&self) -> &[Backend] {
        &self.without
    }
    /// Variables that keep loaders to the others, for this process and those that it starts; `None`: not set.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, Option<&OsString>)> {
        self.limits.iter().flat_map(|l| l.variables.iter().map(|(name, value)| (*name, value.as_ref())))
    }

    fn joins(&mut self, other: Sound) {
        self.left_out.extend(other.left_out);
        self.without.extend(other.without);
        self.limits.extend(other.limits);
    }
}

/// Asks these backends, side by side, as [`super::ask`] does, unless they have answered lately and nothing has changed.
/// `program` is gpuctl.
pub fn sound(backends: &[Backend], waits: Waits, env: &Env, program: &Path) -> Sound {
    let mut all = Sound::default();
    if env.disable_gpu {
        return all;
    }
    let (asker, answered) = (&Asker { program: program.to_path_buf(), waits }, &Answered::of(env));
    let asked = |b: &Backend| matches!(b, Backend::Cuda | Backend::Opencl | Backend::Wgpu) && !env.without.contains(b);
    std::thread::scope(|scope| {
        let threads: Vec<_> = Backend::ALL
            .into_iter()
            .filter(|b| backends.contains(b) && asked(b))
            .map(|b| (b, scope.spawn(move || of_backend(b, asker, answered))))
            .collect();
        for (backend, thread) in threads {
            all.joins(thread.join().unwrap_or_else(|_| {
                let died = Outcome::Unasked("its thread panicked".into());
                without(backend, vec![died.of_backend(backend)])
            }));
        }
    });
    all
}

fn of_backend(backend: Backend, asker: &Asker, answered: &Answered) -> Sound {
    match backend {
        Backend::Opencl => {
            let listing = icd::listing();
            of_drivers_of(asker, answered, &listing.icds)
        }
        Backend::Wgpu => of_drivers_of(asker, answered, &manifest::listing()),
        _ => {
            let told = of_drivers();
            if answered.holds(backend, &told) {
                return Sound::default();
            }
            let (answer, loadable) = asker.whole(backend);
            if !loadable {
                return without(backend, answer.absent);
            }
            keep(backend, answered, &told, &answer);
            Sound::default()
        }
    }
}

fn of_drivers_of<D: Driver>(asker: &Asker, answered: &Answered, drivers: &[D]) -> Sound {
    let told: Vec<String> = drivers.iter().map(D::told).chain(of_drivers()).collect();
    if answered.holds(D::BACKEND, &told) {
        return Sound::default();
    }
    let (answer, loadable) = asker.drivers(drivers);
    match loadable {
        Loadable::All => {
            keep(D::BACKEND, answered, &told, &answer);
            Sound::default()
        }
        Loadable::None => without(D::BACKEND, answer.absent),
        Loadable::Only(places) => {
            let good: Vec<&D> = places.iter().map(|at| &drivers[*at]).collect();
            match D::limit(&good) {
                // The rows of the others: what a good driver says of its own devices it says again.
                Ok(limit) => {
                    let bad = |(at, d): (usize, &D)| (!places.contains(&at)).then(|| d.what());
                    let bad: Vec<String> = drivers.iter().enumerate().filter_map(bad).collect();
                    let left_out = answer.absent.into_iter().filter(|row| bad.contains(&row.what)).collect();
                    Sound { left_out, without: Vec::new(), limits: vec![limit] }
                }
                Err(why) => {
                    let row = |d: &&D| d.absence(Code::Io, &why, "make the folder for temporary files writable");
                    without(D::BACKEND, answer.absent.into_iter().chain(good.iter().map(row)).collect())
                }
            }
        }
    }
}

/// Only what answered without a remark is known well enough: what is missing today may be there tomorrow.
fn keep(backend: Backend, answered: &Answered, told: &[String], answer: &Answer) {
    if answer.absent.is_empty() && !answer.devices.is_empty() {
        answered.keep(backend, told, &answer.mapped);
    }
}

fn without(backend: Backend, left_out: Vec<Absence>) -> Sound {
    Sound { left_out, without: vec![backend], limits: Vec::new() }
}
