//! Compiled kernels, kept for the next process.
//!
//! Below `kernels/LAYOUT/` in the user's cache folder lies one file for each text, variant, dtype, kind of device and driver
//! (`entry` has the format). What is loaded will be run, so:
//! - folders and files are their owner's alone (0700, 0600). What somebody else could have written is not read, and no link is
//!   followed, from the cache folder down;
//! - a digest vouches for every byte, and the key's own text says whose kernel it is. What is not exactly as it was written is
//!   removed and built again, with a warning;
//! - a reader meets a file before or after it is written, never half of it, whatever becomes of the writer.
//!
//! Nothing that goes wrong here is an error of the caller: then kernels are compiled as if there were no cache, which is told
//! once. Writing is behind everybody's back (`writer`): a call never waits for it, who measures holds it
//! ([`KernelCache::hold`]) and has it done between two measurements ([`KernelCache::flush`]), and a [`Runner`](super::Runner)
//! that goes waits for it no longer than [`FLUSH`]. Who judges kernels or soaks a device only reads ([`KernelCache::read_only`]):
//! their texts are many, and most of them are used once.

mod entry;
mod writer;

use std::collections::HashSet;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::base::record::KernelsRecord;
use crate::base::{DType, DeviceInfo, Env, Result};
use crate::device::{Device, Program, Source};
use crate::kernel::source::Text;

use super::private;
use entry::Key;
use writer::{Job, Writer};

pub use writer::Hold;

/// Bytes of all files, unless somebody says otherwise.
pub const LIMIT: u64 = 256 << 20;
/// Longest wait for kernels that are still to be written when their device is given up.
pub const FLUSH: Duration = Duration::from_secs(5);
/// Largest file that is read or written, in bytes.
const LARGEST: u64 = 64 << 20;
/// Age from which a file that was never finished is removed.
const ABANDONED: Duration = Duration::from_secs(600);
const ENDING: &str = "kernel";

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder of compiled kernels, or none. Clones share it; threads and processes may.
#[derive(Clone, Default)]
pub struct KernelCache {
    shared: Option<Arc<Shared>>,
    reading: bool,
}

struct Shared {
    disk: Arc<Disk>,
    writer: Writer,
}

impl std::fmt::Debug for KernelCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let folder = self.shared.as_ref().map(|s| s.disk.root.display().to_string());
        write!(f, "KernelCache({}, {})", folder.as_deref().unwrap_or("no folder"), self.state())
    }
}

/// What became of the programs of one device.
#[derive(Debug, Default)]
pub(super) struct Counters {
    builds: AtomicU64,
    build_nanos: AtomicU64,
    loads: AtomicU64,
    load_nanos: AtomicU64,
    hits: AtomicU64,
    refused: AtomicU64,
    kept: AtomicU64,
}

impl Counters {
    /// A program was there already.
    pub(super) fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn builds(&self) -> (u64, f64) {
        (self.builds.load(Ordering::Relaxed), self.build_nanos.load(Ordering::Relaxed) as f64 * 1e-9)
    }

    pub(super) fn record(&self, info: &DeviceInfo, cache: &KernelCache) -> KernelsRecord {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        KernelsRecord {
            device: info.id.clone(),
            uid: info.uid.clone(),
            builds: of(&self.builds),
            build_s: of(&self.build_nanos) as f64 * 1e-9,
            loads: of(&self.loads),
            load_s: of(&self.load_nanos) as f64 * 1e-9,
            hits: of(&self.hits),
            refused: of(&self.refused),
            kept: of(&self.kept),
            cache: cache.state().into(),
            reason: cache.trouble().unwrap_or_default(),
        }
    }
}

impl KernelCache {
    /// None: every program is compiled.
    pub fn off() -> Self {
        Self::default()
    }

    /// The one in the user's cache folder; none for `GPUCTL_CACHE=off`. Touches no file yet.
    pub fn of(env: &Env) -> Self {
        env.cache_dir.as_deref().map_or_else(Self::off, |root| Self::at(root, LIMIT))
    }

    /// One below `root`, of at most `limit` bytes. Touches no file yet.
    pub fn at(root: &Path, limit: u64) -> Self {
        let disk = Arc::new(Disk::new(root, limit));
        let to = Arc::clone(&disk);
        let writer = Writer::new(Box::new(move |job: &Job| {
            if to.keep(&job.key, &job.program) {
                (job.kept)();
            }
        }));
        KernelCache { shared: Some(Arc::new(Shared { disk, writer })), reading: false }
    }

    /// The same cache, to which nothing is added.
    pub fn read_only(&self) -> Self {
        KernelCache { shared: self.shared.clone(), reading: true }
    }

    /// `on`, `read-only` or `off`.
    pub fn state(&self) -> &'static str {
        match (&self.shared, self.reading) {
            (None, _) => "off",
            (Some(_), true) => "read-only",
            (Some(_), false) => "on",
        }
    }

    /// What first stood in the way of reading or keeping kernels, if anything did.
    pub fn trouble(&self) -> Option<String> {
        self.shared.as_ref().and_then(|s| lock(&s.disk.trouble).clone())
    }

    /// Until the value is dropped no kernel is fetched from a driver and written, unless by [`KernelCache::flush`].
    pub fn hold(&self) -> Hold {
        self.shared.as_ref().map_or_else(Hold::nothing, |s| s.writer.hold())
    }

    /// Writes what waits to be written. False if that takes longer than `limit`; what is left is then forgotten.
    pub fn flush(&self, limit: Duration) -> bool {
        self.shared.as_ref().filter(|_| !self.reading).is_none_or(|s| s.writer.flush(limit))
    }

    /// Forgets what waits to be written.
    pub fn abandon(&self) {
        if let Some(s) = self.shared.as_ref().filter(|_| !self.reading) {
            s.writer.clear();
        }
    }

    /// Builds a program: of its kept form if there is one, else of its source. Errors: those of [`Device::build`].
    pub(super) fn build(
        &self,
        device: &dyn Device,
        source: Source<'_>,
        (variant, dtype): (&str, DType),
        counters: &Arc<Counters>,
    ) -> Result<Program> {
        let start = Instant::now();
        let add = |n: &AtomicU64, by: u64| n.fetch_add(by, Ordering::Relaxed);
        // What this binary holds itself, and what a library has, was compiled before.
        let (Source::Text(text), Some(shared)) = (source, &self.shared) else {
            let program = device.build(source, None)?;
            add(&counters.builds, 1);
            add(&counters.build_nanos, start.elapsed().as_nanos() as u64);
            return Ok(program);
        };
        let info = device.info();
        let key = Key::of(info, text, variant, dtype);
        let kept = match shared.disk.load(&key) {
            Kept::Nothing => None,
            Kept::Bytes(bytes) => Some(bytes),
            Kept::Damaged => {
                add(&counters.refused, 1);
                None
            }
        };
        let program = device.build(source, kept.as_deref())?;
        if kept.is_some() && program.stats().from_cache {
            add(&counters.loads, 1);
            add(&counters.load_nanos, start.elapsed().as_nanos() as u64);
            return Ok(program);
        }
        add(&counters.builds, 1);
        add(&counters.build_nanos, start.elapsed().as_nanos() as u64);
        if kept.is_some() {
            add(&counters.refused, 1);
            shared.disk.remove(&key);
            let what = "the driver does not take its kept form; it was built from its source";
            log::warn!("{} on {}: {what}", text.entry, info.id);
        }
        if !self.reading {
            let counters = Arc::clone(counters);
            let kept = Box::new(move || {
                counters.kept.fetch_add(1, Ordering::Relaxed);
            });
            shared.writer.push(Job { key, program: program.clone(), kept });
        }
        Ok(program)
    }

    /// Removes a text that computes wrong, and does not keep it again.
    pub(super) fn distrust(&self, info: &DeviceInfo, text: &Text, variant: &str, dtype: DType) {
        if let Some(shared) = &self.shared {
            shared.disk.distrust(Key::of(info, text, variant, dtype));
        }
    }
}

/// What the folder has of a kernel.
enum Kept {
    Nothing,
    Bytes(Vec<u8>),
    /// Something else; it is removed.
    Damaged,
}

/// The files.
struct Disk {
    root: PathBuf,
    limit: u64,
    trouble: Mutex<Option<String>>,
    /// Writing failed once.
    full: AtomicBool,
    distrusted: Mutex<HashSet<Key>>,
}

impl Disk {
    fn new(root: &Path, limit: u64) -> Self {
        let (trouble, distrusted) = (Mutex::default(), Mutex::default());
        Disk { root: root.into(), limit, trouble, full: AtomicBool::new(false), distrusted }
    }

    /// The cache folder and those below it, down to the one with the files.
    fn folders(&self) -> [PathBuf; 3] {
        let kernels = self.root.join("kernels");
        let files = kernels.join(entry::LAYOUT.to_string());
        [self.root.clone(), kernels, files]
    }

    fn tell(&self, text: String) {
        let mut told = lock(&self.trouble);
        if told.is_none() {
            log::warn!("{text}");
            *told = Some(text);
        }
    }

    fn load(&self, key: &Key) -> Kept {
        match self.read(key) {
            Ok(None) => Kept::Nothing,
            Ok(Some(bytes)) => match entry::open(key, &bytes) {
                Ok(payload) => Kept::Bytes(payload.to_vec()),
                Err(why) => {
                    self.tell(format!("kept kernel {}: {why}; it is removed and built from its source", key.file()));
                    self.remove(key);
                    Kept::Damaged
                }
            },
            Err(why) => {
                self.tell(format!("kept kernels are not used: {why}"));
                Kept::Nothing
            }
        }
    }

    /// The file's bytes. Errors: it may not be trusted, or not be read.
    fn read(&self, key: &Key) -> Result<Option<Vec<u8>>, String> {
        let folders = self.folders();
        for folder in &folders {
            match std::fs::symlink_metadata(folder) {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                _ => private::own_folder(folder)?,
            }
        }
        let path = folders[2].join(key.file());
        let Some((file, _)) = private::open(&path)? else { return Ok(None) };
        // The oldest use goes first when room is needed. On a disk that cannot be written none goes.
        let _ = file.set_modified(SystemTime::now());
        let mut bytes = Vec::new();
        // Whatever it says its length is; one byte too many is told by its digest.
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Some(bytes))
    }

    fn remove(&self, key: &Key) {
        let [.., files] = self.folders();
        let _ = std::fs::remove_file(files.join(key.file()));
    }

    fn distrust(&self, key: Key) {
        let mut distrusted = lock(&self.distrusted);
        self.remove(&key);
        distrusted.insert(key);
    }

    /// Writes a program's compiled form. False if it has none, or if it cannot be kept, which is told.
    fn keep(&self, key: &Key, program: &Program) -> bool {
        if self.full.load(Ordering::Relaxed) {
            return false;
        }
        let Some(payload) = program.binary() else { return false };
        let bytes = entry::seal(key, payload);
        if bytes.len() as u64 > LARGEST.min(self.limit) {
            return false;
        }
        // Held until it is written: who distrusts it meanwhile removes it after.
        let distrusted = lock(&self.distrusted);
        if distrusted.contains(key) {
            return false;
        }
        let written = self.write(key, &bytes);
        if let Err(why) = &written {
            self.full.store(true, Ordering::Relaxed);
            self.tell(format!("compiled kernels are not kept: {why}"));
        }
        written.is_ok()
    }

    fn write(&self, key: &Key, bytes: &[u8]) -> Result<(), String> {
        let folders = self.folders();
        folders.iter().try_for_each(|folder| private::make_folder(folder))?;
        let [.., files] = &folders;
        make_room(files, self.limit.saturating_sub(bytes.len() as u64));
        private::replace(files, &key.file(), bytes).map_err(|e| format!("{}: {e}", files.display()))
    }
}

/// Removes the files that were not used for the longest time until the others have at most `room` bytes, and what was never
/// finished. Of several processes that write at once each may be one file over.
fn make_room(folder: &Path, room: u64) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let (mut all, mut total) = (Vec::new(), 0);
    for path in entries.flatten().map(|e| e.path()) {
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        match path.extension().and_then(|e| e.to_str()) {
            Some(private::PART) if used.elapsed().is_ok_and(|age| age > ABANDONED) => {
                let _ = std::fs::remove_file(path);
            }
            Some(private::PART) => total += meta.len(),
            Some(ENDING) => {
                total += meta.len();
                all.push((used, meta.len(), path));
            }
            // Nothing of ours.
            _ => {}
        }
    }
    all.sort_unstable();
    for (_, bytes, path) in all {
        if total <= room {
            return;
        }
        if std::fs::remove_file(path).is_ok() {
            total -= bytes;
        }
    }
}
