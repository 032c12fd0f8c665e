//! Drivers that one loader loads all at once, asked one by one where they do not answer together.

use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use crate::base::text::printable;
use crate::base::{Absence, Backend, Code, DeviceInfo};
use crate::device::icd::{Apart, Icd};
use crate::device::manifest::Manifest;
use crate::device::platform;

use super::{Answer, Asker, Outcome};

/// A driver that a loader is told of.
pub(super) trait Driver: Sync + Sized {
    const BACKEND: Backend;
    /// What to do about one that gives no answer.
    const ONE: &'static str;
    /// What to do where they give none together.
    const SOME: &'static str;

    /// Its library's name, if there is one.
    fn library(&self) -> Option<&str>;
    /// What a list calls it.
    fn what(&self) -> String;
    /// A row about it.
    fn absence(&self, code: Code, why: &str, next: &str) -> Absence;
    /// The row of one that names no library.
    fn nameless(&self) -> Option<Absence>;
    /// What keeps a loader to these drivers and no others. Errors: why there is no way to say it.
    fn limit(drivers: &[&Self]) -> Result<Limit, String>;
    /// What the loader is told of this driver, in one line.
    fn told(&self) -> String;
    /// Asks with these drivers and no others.
    fn only(asker: &Asker, drivers: &[&Self], stop: &AtomicBool) -> Outcome {
        let limit = match Self::limit(drivers) {
            Ok(limit) => limit,
            Err(why) => return Outcome::Unasked(why),
        };
        let mut outcome = asker.ask(Self::BACKEND, &|command| limit.apply(command), stop);
        if let (Outcome::Answered(answer), Some(apart)) = (&mut outcome, &limit.apart) {
            for row in &mut answer.absent {
                row.what = apart.original(&row.what);
                row.reason = apart.original(&row.reason);
            }
        }
        outcome
    }
    /// Answers of drivers that were asked alone as one answer.
    fn joined(answers: Vec<Answer>) -> Answer;
}

impl Driver for Icd {
    const BACKEND: Backend = Backend::Opencl;
    const ONE: &'static str = "update or remove this driver; until then commands leave it out, after the wait if it hangs; \
                               OCL_ICD_VENDORS=FOLDER with the other .icd files saves that";
    const SOME: &'static str = "OCL_ICD_VENDORS=FOLDER with some of the .icd files keeps every command to those";

    fn library(&self) -> Option<&str> {
        self.library.as_deref().ok()
    }
    fn what(&self) -> String {
        Icd::what(self)
    }
    fn absence(&self, code: Code, why: &str, next: &str) -> Absence {
        Icd::absence(self, code, why, next)
    }
    fn nameless(&self) -> Option<Absence> {
        Icd::nameless(self)
    }
    fn limit(drivers: &[&Self]) -> Result<Limit, String> {
        let apart = Apart::of(drivers).map_err(|e| format!("no temporary folder: {e}"))?;
        let folder = Some(apart.path().as_os_str().to_os_string());
        let variables = vec![("OCL_ICD_VENDORS", folder), ("OPENCL_VENDOR_PATH", None), ("OCL_ICD_FILENAMES", None)];
        Ok(Limit { variables, apart: Some(apart) })
    }
    fn told(&self) -> String {
        format!("{} names {:?}", self.what(), self.library)
    }
    fn joined(answers: Vec<Answer>) -> Answer {
        numbered_by_platforms(answers)
    }
}

impl Driver for Manifest {
    const BACKEND: Backend = Backend::Wgpu;
    const ONE: &'static str = "update or remove this driver; until then commands leave it out, after the wait if it hangs; \
                               VK_DRIVER_FILES=A.json:B.json with the other files saves that";
    const SOME: &'static str = "VK_DRIVER_FILES=A.json:B.json with some of the files keeps every command to those";

    fn library(&self) -> Option<&str> {
        self.library.as_deref().ok()
    }
    fn what(&self) -> String {
        self.path.display().to_string()
    }
    fn absence(&self, code: Code, why: &str, next: &str) -> Absence {
        Manifest::absence(self, code, why, next)
    }
    fn nameless(&self) -> Option<Absence> {
        Manifest::nameless(self)
    }
    fn limit(drivers: &[&Self]) -> Result<Limit, String> {
        let files: Vec<_> = drivers.iter().map(|d| d.path.as_path()).collect();
        let list = std::env::join_paths(files).map_err(|e| format!("its file cannot be named to the loader: {e}"))?;
        // Loaders before 1.3.207 know the older name alone.
        let names = [("VK_DRIVER_FILES", Some(list.clone())), ("VK_ICD_FILENAMES", Some(list))];
        Ok(Limit { variables: names.into_iter().chain([("VK_ADD_DRIVER_FILES", None)]).collect(), apart: None })
    }
    fn told(&self) -> String {
        format!("{} names {:?}", self.path.display(), self.library)
    }
    /// In the order of the files: which order devices would have together is not known.
    fn joined(answers: Vec<Answer>) -> Answer {
        let mut all = Answer::default();
        for answer in answers {
            for device in answer.devices {
                if !all.devices.iter().any(|known| known.uid == device.uid) {
                    all.devices.push(DeviceInfo { id: format!("wgpu:{}", all.devices.len()), ..device });
                }
            }
            all.absent.extend(answer.absent);
        }
        if !all.devices.is_empty() {
            // What has no device alone is not the backend's reason.
            all.absent.retain(|row| row.what != Self::BACKEND.name());
        }
        all
    }
}

/// Keeps a loader to some drivers.
#[derive(Debug, Default)]
pub(super) struct Limit {
    /// `None`: not set.
    pub(super) variables: Vec<(&'static str, Option<OsString>)>,
    /// Folder that a variable names; it is gone with this.
    pub(super) apart: Option<Apart>,
}

impl Limit {
    fn apply(&self, command: &mut Command) {
        for (name, value) in &self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
}

/// Which of some drivers may be loaded together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loadable {
    All,
    /// By their places in the list.
    Only(Vec<usize>),
    None,
}

impl Outcome {
    /// The row of a driver that gave no answer.
    pub(super) fn of_driver<D: Driver>(&self, driver: &D) -> Option<Absence> {
        let library = driver.library().unwrap_or_default();
        let (code, why) = self.fault(&format!("the driver's library {}", printable(library)))?;
        Some(driver.absence(code, &why, D::ONE))
    }
}

impl Asker {
    /// Asks a loader, and its drivers one by one if it is late or comes to nothing.
    pub(super) fn drivers<D: Driver>(&self, drivers: &[D]) -> (Answer, Loadable) {
        let stop = AtomicBool::new(false);
        let never = AtomicBool::new(false);
        let (say, heard) = channel();
        let (together, alone) = std::thread::scope(|scope| {
            let all = scope.spawn(|| {
                let outcome = self.ask(D::BACKEND, &|_| {}, &never);
                let answered = matches!(outcome, Outcome::Answered(_));
                stop.store(answered, Ordering::Relaxed);
                let _ = say.send(answered);
                outcome
            });
            // With one driver there is nothing to tell apart.
            let settled = drivers.len() < 2 || heard.recv_timeout(self.waits.patience).is_ok_and(|answered| answered);
            let alone = if settled { Vec::new() } else { self.each(drivers, &stop) };
            (all.join().unwrap_or_else(|_| Outcome::Unasked("its thread panicked".into())), alone)
        });
        match together {
            Outcome::Answered(answer) => (answer, Loadable::All),
            outcome => match drivers {
                [] => (Answer::only_absent(vec![outcome.of_backend(D::BACKEND)]), Loadable::None),
                [one] => (Answer::only_absent(outcome.of_driver(one).into_iter().collect()), Loadable::None),
                several => self.sorted_out(&outcome, several, alone),
            },
        }
    }

    /// Each driver alone, side by side. `None` for those that have no library.
    fn each<D: Driver>(&self, drivers: &[D], stop: &AtomicBool) -> Vec<Option<Outcome>> {
        std::thread::scope(|scope| {
            let one = |driver| scope.spawn(move || D::only(self, &[driver], stop));
            let asked: Vec<_> = drivers.iter().map(|d| d.library().is_some().then(|| one(d))).collect();
            let done = asked.into_iter().map(|thread| {
                thread.map(|t| t.join().unwrap_or_else(|_| Outcome::Unasked("its thread panicked".into())))
            });
            done.collect()
        })
    }

    /// What several drivers that gave no answer together give otherwise.
    fn sorted_out<D: Driver>(
        &self,
        together: &Outcome,
        drivers: &[D],
        alone: Vec<Option<Outcome>>,
    ) -> (Answer, Loadable) {
        let mut all = Answer::default();
        let mut good = Vec::new();
        let mut places = Vec::new();
        let mut answers = Vec::new();
        for (at, (driver, outcome)) in drivers.iter().zip(alone).enumerate() {
            match outcome {
                None => all.absent.extend(driver.nameless()),
                Some(Outcome::Answered(answer)) => {
                    good.push(driver);
                    places.push(at);
                    answers.push(answer);
                }
                Some(other) => all.absent.extend(other.of_driver(driver)),
            }
        }
        let rest = if good.len() == drivers.len() {
            together.clone()
        } else if let [only] = &mut answers[..] {
            Outcome::Answered(std::mem::take(only))
        } else if good.is_empty() {
            Outcome::Answered(Answer::default())
        } else {
            D::only(self, &good, &AtomicBool::new(false))
        };
        let loadable = match (&rest, places.len()) {
            (Outcome::Answered(_), 1..) => Loadable::Only(places),
            _ => Loadable::None,
        };
        match rest {
            Outcome::Answered(answer) => all.add(answer),
            other => {
                if let Some((code, why)) = other.fault("the drivers") {
                    all.absent.push(Absence {
                        backend: D::BACKEND,
                        what: D::BACKEND.name().into(),
                        reason: format!("{}: each driver answers alone, but together {why}", code.name()),
                        next: D::SOME.into(),
                    });
                }
                all.add(D::joined(answers));
            }
        }
        (all, loadable)
    }
}

/// Answers of drivers that were asked alone, numbered as if they had been asked together. Devices that cannot be used have
/// an id, too.
fn numbered_by_platforms(answers: Vec<Answer>) -> Answer {
    let mut all = Answer::default();
    // Each platform with the answer that has it and the number of its first device there.
    let mut from: Vec<(usize, usize)> = Vec::new();
    for (i, answer) in answers.iter().enumerate() {
        let mut first = 0;
        for one in &answer.platforms {
            if !all.platforms.iter().any(|known| platform::same_driver(known, one)) {
                all.platforms.push(one.clone());
                from.push((i, first));
            }
            first += one.devices.len();
        }
    }
    let places = platform::places(&all.platforms);
    // The new number and uid of a device; nothing if the platform is that of an earlier answer.
    let place = |answer: usize, number: usize| {
        places.iter().find_map(|place| {
            let (of, first) = from[place.platform];
            let index = number.checked_sub(first).filter(|_| of == answer)?;
            place.uids.get(index).map(|uid| (place.first + index, uid.clone()))
        })
    };
    let mut devices = Vec::new();
    let mut numbered = Vec::new();
    let mut others = Vec::new();
    for (i, answer) in answers.into_iter().enumerate() {
        for device in answer.devices {
            let number = numbered_as(&device.id).map_or(0, |(number, _)| number);
            if let Some((number, uid)) = place(i, number) {
                devices.push((number, DeviceInfo { id: format!("opencl:{number}"), uid, ..device }));
            }
        }
        for row in answer.absent {
            let Some((old, name)) = numbered_as(&row.what) else {
                // A platform without devices is nameless but for its row: not twice either.
                if !others.contains(&row) {
                    others.push(row);
                }
                continue;
            };
            if let Some((number, _)) = place(i, old) {
                numbered.push((number, Absence { what: format!("opencl:{number}{name}"), ..row }));
            }
        }
    }
    devices.sort_by_key(|(number, _)| *number);
    numbered.sort_by_key(|(number, _)| *number);
    all.devices = devices.into_iter().map(|(_, device)| device).collect();
    all.absent = numbered.into_iter().map(|(_, row)| row).chain(others).collect();
    all.platforms = places.iter().map(|p| all.platforms[p.platform].clone()).collect();
    all
}

/// The number of `opencl:2 Some Card`, and what comes after it.
fn numbered_as(text: &str) -> Option<(usize, &str)> {
    let rest = text.strip_prefix("opencl:")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((rest[..digits].parse().ok()?, &rest[digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::platform::Platform;

    fn device(id: &str) -> DeviceInfo {
        DeviceInfo { id: id.into(), backend: Backend::Opencl, ..DeviceInfo::ordinary_gpu() }
    }

    fn row(what: &str) -> Absence {
        Absence { backend: Backend::Opencl, what: what.into(), reason: "old".into(), next: "new".into() }
    }

    fn platform(name: &str, devices: usize) -> Platform {
        let seen = platform::Seen { name: "a card".into(), driver: "1".into(), hardware: None };
        let file = Some(format!("/lib{name}.so"));
        Platform { name: name.into(), devices: vec![seen; devices], file, ..Platform::default() }
    }

    /// Drivers that were asked alone have the ids and uids of a loader that asks all of them, whatever their order.
    #[test]
    fn drivers_that_were_asked_alone_are_numbered_as_together() {
        let two = Answer {
            devices: vec![device("opencl:0")],
            absent: vec![row("opencl:1 Old"), row("/b.icd")],
            platforms: vec![platform("B", 2)],
            ..Answer::default()
        };
        let none = Answer::only_absent(vec![row("/a.icd")]);
        let first =
            Answer { devices: vec![device("opencl:0")], platforms: vec![platform("A", 1)], ..Answer::default() };
        let last = Answer {
            devices: vec![device("opencl:0"), device("opencl:2")],
            absent: vec![row("opencl:1 Old"), row("opencl:3 Old")],
            platforms: vec![platform("B", 1), platform("C", 3)],
            ..Answer::default()
        };
        for answers in
            [[&two, &none, &first, &last, &two], [&last, &first, &two, &two, &none], [&none, &two, &last, &two, &first]]
        {
            // The last answer has a platform of B's name from another file.
            let mut answers = answers.map(Clone::clone);
            for answer in &mut answers {
                if let [b, _] = &mut answer.platforms[..] {
                    b.file = Some("/copy/libB.so".into());
                }
            }
            let all = numbered_by_platforms(answers.to_vec());
            let ids: Vec<_> = all.devices.iter().map(|d| format!("{} {}", d.id, d.uid)).collect();
            assert_eq!(
                ids,
                ["opencl:0 opencl/a/0", "opencl:1 opencl/b/1/0", "opencl:2 opencl/b/1/2/0", "opencl:5 opencl/c/1"]
            );
            let mut rows: Vec<_> = all.absent.iter().map(|a| a.what.as_str()).collect();
            rows[3..].sort_unstable();
            assert_eq!(rows, ["opencl:3 Old", "opencl:4 Old", "opencl:6 Old", "/a.icd", "/b.icd"]);
            let names: Vec<_> = all.platforms.iter().map(|p| p.name.as_str()).collect();
            assert_eq!(names, ["A", "B", "B", "C"]);
        }
    }

    #[test]
    fn devices_of_vulkan_drivers_that_were_asked_alone_are_numbered_anew() {
        let of = |uid: &str| DeviceInfo { uid: uid.into(), ..device("wgpu:0") };
        let none = Answer::only_absent(vec![row("wgpu")]);
        let one = Answer { devices: vec![of("a")], ..Answer::default() };
        let two = Answer { devices: vec![of("a"), of("b")], absent: vec![row("wgpu:1 Old")], ..Answer::default() };
        let all = Manifest::joined(vec![none.clone(), one, two]);
        let ids: Vec<_> = all.devices.iter().map(|d| format!("{} {}", d.id, d.uid)).collect();
        assert_eq!(ids, ["wgpu:0 a", "wgpu:1 b"]);
        assert_eq!(all.absent, [row("wgpu:1 Old")]);
        assert_eq!(Manifest::joined(vec![none.clone()]), none, "the reason why there is nothing at all");
    }
}
