//! Files that are not as they were written, or that somebody else could have written.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use gpuctl::base::record::KernelsRecord;
use gpuctl::engine::KernelCache;
use gpuctl::engine::cache::{FLUSH, LIMIT};

use super::files_in;
use super::paper::{OPS, Paper, built};

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o777
}

/// A process that wants `relu`: what became of it, and how many kernels were not what the compiler makes.
fn wants(root: &Path) -> (KernelsRecord, u64) {
    let device = Arc::new(Paper::new(300));
    let kernels = KernelCache::at(root, LIMIT);
    let runner = built(&device, &kernels, &["relu"]);
    assert!(kernels.flush(FLUSH));
    (runner.kernels(), device.counts().1)
}

fn loads(root: &Path) -> bool {
    let (told, wrong) = wants(root);
    assert_eq!((told.builds + told.loads, wrong), (1, 0));
    told.loads == 1
}

/// One kernel, and its file.
fn one() -> (tempfile::TempDir, std::path::PathBuf) {
    let root = tempfile::tempdir().unwrap();
    assert!(!loads(root.path()));
    let file = files_in(root.path()).remove(0);
    (root, file)
}

#[test]
fn what_is_not_as_it_was_written_is_removed_and_built_again() {
    let (root, file) = one();
    let whole = std::fs::read(&file).unwrap();
    let mut bad: Vec<Vec<u8>> = vec![b"something else".to_vec(), b"GIF89a".repeat(1000), [&whole[..], b"\0"].concat()];
    // In front of and behind every border between parts: head, key, payload, digest; and a step through all of it.
    let lengths = [0, 1, 7, 8, 12, 16, 23, 24, 25, 56, whole.len() - 33, whole.len() - 32, whole.len() - 1];
    bad.extend(lengths.iter().map(|n| whole[..*n].to_vec()));
    for at in (0..whole.len()).step_by(13).chain(lengths.into_iter().filter(|n| *n < whole.len())) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        bad.push(flipped);
    }
    for (n, bytes) in bad.iter().enumerate() {
        std::fs::write(&file, bytes).unwrap();
        let (told, wrong) = wants(root.path());
        assert_eq!((told.builds, told.loads, told.refused, told.kept, wrong), (1, 0, 1, 1, 0), "damage {n}");
        assert!(told.reason.contains("it is removed and built from its source"), "{}", told.reason);
        assert_eq!(std::fs::read(&file).unwrap(), whole, "damage {n} is repaired");
    }
    assert!(loads(root.path()));
}

/// Another kernel's whole, sound file under this one's name.
#[test]
fn a_kernel_under_another_ones_name_is_not_run() {
    let root = tempfile::tempdir().unwrap();
    let device = Arc::new(Paper::new(300));
    drop(built(&device, &KernelCache::at(root.path(), LIMIT), &OPS));
    let files = files_in(root.path());
    let bytes: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
    files.iter().zip(bytes.iter().cycle().skip(1)).for_each(|(f, b)| std::fs::write(f, b).unwrap());
    let next = Arc::new(Paper::new(300));
    let told = built(&next, &KernelCache::at(root.path(), LIMIT), &OPS).kernels();
    assert_eq!((told.loads, told.refused, next.counts().1), (0, files.len() as u64, 0));
}

#[test]
fn folders_and_files_are_their_owners_alone() {
    let (root, file) = one();
    let cache = root.path().join("below");
    assert!(!loads(&cache));
    for folder in [cache.clone(), cache.join("kernels"), cache.join("kernels/1")] {
        assert_eq!(mode(&folder), 0o700, "{}", folder.display());
    }
    assert_eq!(mode(&file), 0o600);
}

#[test]
fn what_others_may_write_is_not_loaded() {
    let (root, file) = one();
    for bad in [0o620, 0o602, 0o666] {
        set_mode(&file, bad);
        let (told, wrong) = wants(root.path());
        assert_eq!((told.loads, wrong), (0, 0), "{bad:o}");
        assert!(told.reason.contains("others may write it"), "{}", told.reason);
        assert_eq!(mode(&file), 0o600, "written anew, for its owner alone");
    }
    assert!(loads(root.path()));
    for folder in [root.path().to_path_buf(), root.path().join("kernels"), root.path().join("kernels/1")] {
        for bad in [0o770, 0o707, 0o777, 0o1777] {
            set_mode(&folder, bad);
            let changed = std::fs::metadata(&file).unwrap().modified().unwrap();
            let (told, wrong) = wants(root.path());
            assert_eq!((told.loads, told.kept, wrong), (0, 0, 0), "{} {bad:o}", folder.display());
            assert!(told.reason.contains("others may write it"), "{}", told.reason);
            assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), changed, "nor written");
        }
        set_mode(&folder, 0o755);
        assert!(loads(root.path()), "others may look");
    }
}

/// Links are not followed, neither to be read nor to be written.
#[test]
fn links_are_not_followed() {
    let (root, file) = one();
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("target");
    std::fs::rename(&file, &target).unwrap();
    symlink(&target, &file).unwrap();
    let before = std::fs::read(&target).unwrap();
    assert!(!loads(root.path()), "a sound file behind a link");
    assert_eq!(std::fs::read(&target).unwrap(), before);
    assert!(!file.is_symlink() && loads(root.path()), "the link was replaced by a file");
    let folders = [root.path().join("kernels/1"), root.path().join("kernels")];
    for (n, folder) in folders.into_iter().enumerate() {
        let real = elsewhere.path().join(format!("folder {n}"));
        std::fs::rename(&folder, &real).unwrap();
        symlink(&real, &folder).unwrap();
        let (told, wrong) = wants(root.path());
        assert_eq!((told.loads, told.kept, wrong), (0, 0, 0));
        assert!(told.reason.contains("a link to one"), "{}", told.reason);
        std::fs::remove_file(&folder).unwrap();
        std::fs::rename(&real, &folder).unwrap();
    }
    let link = elsewhere.path().join("root");
    symlink(root.path(), &link).unwrap();
    assert!(!loads(&link), "the cache folder itself is a link");
    assert!(loads(root.path()));
    // A folder or a pipe in the place of a file keeps nobody waiting.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(!loads(root.path()));
    std::fs::remove_dir(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    assert!(!loads(root.path()));
}

#[test]
fn what_belongs_to_somebody_else_is_not_loaded() {
    let (root, file) = one();
    let me = std::fs::metadata(&file).unwrap().uid();
    if chown(&file, Some(12_345), None).is_err() {
        eprintln!("skipped: what_belongs_to_somebody_else_is_not_loaded: only root can give files away");
        return;
    }
    let (told, _) = wants(root.path());
    assert!(told.loads == 0 && told.reason.contains("it belongs to another user"), "{}", told.reason);
    assert_eq!(std::fs::metadata(&file).unwrap().uid(), me, "the folder is ours: it was replaced");
    assert!(loads(root.path()));
    for folder in [root.path().to_path_buf(), root.path().join("kernels"), root.path().join("kernels/1")] {
        chown(&folder, Some(12_345), None).unwrap();
        let (told, _) = wants(root.path());
        assert_eq!((told.loads, told.kept), (0, 0), "{}", folder.display());
        assert!(told.reason.contains("it belongs to another user"), "{}", told.reason);
        chown(&folder, Some(me), None).unwrap();
    }
    assert!(loads(root.path()));
}

/// Where nothing can be written nothing is kept, nothing fails, and it is told once.
#[test]
fn a_place_that_takes_nothing_costs_the_cache_alone() {
    // No folder can be made there, by root neither.
    let (told, wrong) = wants(Path::new("/sys/gpuctl"));
    assert_eq!((told.builds, told.kept, wrong), (1, 0, 0));
    assert!(told.reason.starts_with("compiled kernels are not kept: /sys/gpuctl"), "{}", told.reason);
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("kernels"), "").unwrap();
    let (told, _) = wants(root.path());
    assert!(told.builds == 1 && told.kept == 0 && !told.reason.is_empty());
    assert_eq!(std::fs::read(root.path().join("kernels")).unwrap(), b"", "it is not ours");
}

/// What a writer that was killed left behind goes when it is old, and counts until then.
#[test]
fn what_was_never_finished_is_removed_when_it_is_old() {
    let (root, file) = one();
    let part = |name: &str| root.path().join("kernels/1").join(name);
    for name in ["a.kernel.1-0.part", "b.kernel.2-0.part", "notes.txt"] {
        std::fs::write(part(name), [0; 100]).unwrap();
    }
    let hour = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    std::fs::File::open(part("a.kernel.1-0.part")).unwrap().set_modified(hour).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(!loads(root.path()));
    assert!(!part("a.kernel.1-0.part").exists());
    assert!(part("b.kernel.2-0.part").exists() && part("notes.txt").exists(), "young, and not ours");
}
