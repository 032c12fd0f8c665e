//! Files and folders that are their owner's alone: what decides about code that will run may come from nobody else.
//!
//! Every check is of the opened file, or of a folder that nobody else may write: what was looked at is what is read.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::base::os;

/// Ending of files that are being written.
pub(super) const PART: &str = "part";

/// Makes a folder with those above it (mode 0700) where it is missing, and fails with the reason why somebody else may write
/// in it.
pub(super) fn make_folder(folder: &Path) -> Result<(), String> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    own_folder(folder)
}

/// Fails with the reason why a folder is none, or somebody else may write in it.
pub(super) fn own_folder(folder: &Path) -> Result<(), String> {
    let untrusted = |why: &str| format!("{}: {why}", folder.display());
    let meta = std::fs::symlink_metadata(folder).map_err(|e| untrusted(&e.to_string()))?;
    if !meta.is_dir() {
        return Err(untrusted("no folder, or a link to one"));
    }
    own(&meta).map_err(untrusted)
}

/// Fails with the reason why somebody else may have written it.
pub(super) fn own(meta: &Metadata) -> Result<(), &'static str> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if os::user_id() != Some(meta.uid()) {
            return Err("it belongs to another user");
        }
        if meta.mode() & 0o022 != 0 {
            return Err("others may write it (chmod go-w)");
        }
    }
    #[cfg(not(unix))]
    let _ = (meta, os::user_id());
    Ok(())
}

/// Opens a file that only its owner may write; `None` if there is none. Errors: why it may not be trusted.
pub(super) fn open(path: &Path) -> Result<Option<(File, Metadata)>, String> {
    let untrusted = |why: &str| format!("{}: {why}", path.display());
    let mut options = OpenOptions::new();
    options.read(true);
    // No link is followed, and a pipe does not keep anybody waiting.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(untrusted(&e.to_string())),
        Ok(file) => file,
    };
    let meta = file.metadata().map_err(|e| untrusted(&e.to_string()))?;
    if !meta.is_file() {
        return Err(untrusted("no file"));
    }
    own(&meta).map_err(untrusted)?;
    Ok(Some((file, meta)))
}

/// Writes a file (mode 0600) under a name of its own and then renames it: a reader meets the file before or after, never half
/// of it, whenever the writer ends. Nothing is synchronised: what a power cut leaves, readers must recognise.
pub(super) fn replace(folder: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    os::replace(&folder.join(name), PART, &mut options, |file| file.write_all(bytes))
}
