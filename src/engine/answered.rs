//! Which drivers have answered in a process of their own: kept, so that the next program need not ask again.
//!
//! One small file for each API below `drivers/` in the user's cache folder. It decides whether code is loaded, so folder and
//! files are their owner's alone, and what somebody else could have written is not read. An answer holds while everything is as it
//! was: what the loader is told of drivers, variables that they read, the start of the system, and every file that was mapped as
//! code while the driver answered, by size and time. It holds for an hour: a card may hang at any time. Nothing that goes wrong
//! with a file is an error: then the drivers are asked.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::base::{Backend, Env, os};

use super::{private, trials};

/// Version of the layout.
const LAYOUT: u32 = 1;
/// Largest file that is read or written, in bytes.
const LARGEST: u64 = 1 << 20;
/// Seconds for which an answer holds.
const HOLDS: u64 = 3600;

/// A file by what changes when it is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    path: String,
    bytes: u64,
    /// Nanoseconds since 1970.
    changed: u128,
}

impl Seen {
    fn of(path: &str) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        let changed = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        Some(Seen { path: path.into(), bytes: meta.len(), changed })
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    gpuctl_drivers: u32,
    build: String,
    boot: String,
    /// Seconds since 1970 (UTC).
    when: u64,
    told: Vec<String>,
    files: Vec<Seen>,
}

/// Answers in the user's cache folder.
#[derive(Clone, Debug)]
pub struct Answered {
    folder: Option<PathBuf>,
}

impl Answered {
    /// Nothing is kept where the user has no cache folder.
    pub fn of(env: &Env) -> Self {
        Answered { folder: env.cache_dir.as_ref().map(|d| d.join("drivers")) }
    }

    fn name(backend: Backend) -> String {
        format!("{}.json", backend.name())
    }

    /// Whether an answer of this API's drivers still holds. `told` is what its loader is told of drivers.
    pub fn holds(&self, backend: Backend, told: &[String]) -> bool {
        let page = self.folder.as_deref().and_then(|folder| read(folder, &Self::name(backend)));
        page.is_some_and(|page| page.holds(told, trials::now()))
    }

    /// Keeps that the drivers answered with these files mapped. Without any it is not known what answered.
    pub fn keep(&self, backend: Backend, told: &[String], files: &[String]) {
        let Some(folder) = self.folder.as_deref().filter(|_| !files.is_empty()) else { return };
        let seen: Option<Vec<Seen>> = files.iter().map(|path| Seen::of(path)).collect();
        let (Some(files), boot) = (seen, os::boot()) else { return };
        if boot.is_empty() {
            return;
        }
        let (build, told) = (trials::this_build().into(), told.to_vec());
        let page = Page { gpuctl_drivers: LAYOUT, build, boot, when: trials::now(), told, files };
        let Ok(text) = serde_json::to_string(&page) else { return };
        if text.len() as u64 > LARGEST {
            return;
        }
        let kept = private::make_folder(folder)
            .and_then(|()| private::replace(folder, &Self::name(backend), text.as_bytes()).map_err(|e| e.to_string()));
        if let Err(why) = kept {
            log::info!("that drivers answered is not kept: {why}");
        }
    }
}

impl Page {
    fn holds(&self, told: &[String], now: u64) -> bool {
        let same = self.gpuctl_drivers == LAYOUT && self.build == trials::this_build() && self.told == told;
        let fresh = self.when <= now && now - self.when < HOLDS && self.boot == os::boot();
        let there = |seen: &Seen| Seen::of(&seen.path).as_ref() == Some(seen);
        same && fresh && !self.files.is_empty() && self.files.iter().all(there)
    }
}

fn read(folder: &Path, name: &str) -> Option<Page> {
    private::own_folder(folder).ok()?;
    let (file, meta) = private::open(&folder.join(name)).ok()??;
    if meta.len() > LARGEST {
        return None;
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile; what is cut is no page.
    file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_answer_holds_while_everything_is_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Answered::of(&Env { cache_dir: Some(dir.path().into()), ..Env::default() });
        let library = dir.path().join("libdriver.so");
        let files = [library.display().to_string()];
        let told = ["a.icd names libdriver.so".to_string()];
        let holds = |told: &[String]| kept.holds(Backend::Opencl, told);
        std::fs::write(&library, "one").unwrap();
        assert!(!holds(&told), "nothing is kept yet");
        kept.keep(Backend::Opencl, &told, &[]);
        assert!(!holds(&told), "nobody knows what answered");
        kept.keep(Backend::Opencl, &told, &files);
        assert!(holds(&told));
        assert!(!kept.holds(Backend::Wgpu, &told), "another API's");
        assert!(!holds(&[]) && !holds(&[told[0].clone(), "b.icd".into()]), "another list of drivers");
        std::fs::write(&library, "longer").unwrap();
        assert!(!holds(&told), "the library was replaced");
        kept.keep(Backend::Opencl, &told, &files);
        assert!(holds(&told));
        std::fs::remove_file(&library).unwrap();
        assert!(!holds(&told), "it is gone");
        kept.keep(Backend::Opencl, &told, &files);
        std::fs::write(&library, "longer").unwrap();
        assert!(!holds(&told), "the time differs, and what is not there is not kept");
    }

    #[test]
    fn time_passes_and_systems_start_anew() {
        let told = vec!["x".to_string()];
        let files = vec![Seen::of("/proc/self/exe").unwrap()];
        let (build, boot) = (trials::this_build().to_string(), os::boot());
        let page = |when, boot: &str| Page {
            gpuctl_drivers: LAYOUT,
            build: build.clone(),
            boot: boot.into(),
            when,
            told: told.clone(),
            files: files.clone(),
        };
        assert!(page(1_000_000, &boot).holds(&told, 1_000_000 + HOLDS - 1));
        assert!(!page(1_000_000, &boot).holds(&told, 1_000_000 + HOLDS));
        assert!(!page(1_000_000, &boot).holds(&told, 999_999), "of a clock that was set back");
        assert!(!page(1_000_000, "another").holds(&told, 1_000_001));
        let none = Page { files: Vec::new(), ..page(1_000_000, &boot) };
        assert!(!none.holds(&told, 1_000_001));
    }

    #[test]
    fn what_others_may_write_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Answered::of(&Env { cache_dir: Some(dir.path().into()), ..Env::default() });
        let (told, files) = (["x".to_string()], ["/proc/self/exe".to_string()]);
        kept.keep(Backend::Cuda, &told, &files);
        assert!(kept.holds(Backend::Cuda, &told));
        let (folder, file) = (dir.path().join("drivers"), dir.path().join("drivers/cuda.json"));
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        for (path, open, closed) in [(&file, 0o622, 0o600), (&folder, 0o777, 0o700)] {
            mode(path, open);
            assert!(!kept.holds(Backend::Cuda, &told), "{path:?}");
            mode(path, closed);
            assert!(kept.holds(Backend::Cuda, &told));
        }
        let text = std::fs::read_to_string(&file).unwrap();
        for bad in ["", "{", &text[..text.len() - 2], &text.replace("\"told\"", "\"more\":1,\"told\"")] {
            std::fs::write(&file, bad).unwrap();
            assert!(!kept.holds(Backend::Cuda, &told), "{bad}");
        }
        assert!(!Answered::of(&Env::default()).holds(Backend::Cuda, &told));
        Answered::of(&Env::default()).keep(Backend::Cuda, &told, &files);
    }
}
