//! Files that one run keeps for the next, in the cache.

use std::path::Path;

use crate::base::{Code, Error, Result};

use super::output;

/// The text of a kept file. Errors: `Io`, and `BadArgument` for one of more than `most` bytes.
pub(super) fn read(path: &Path, most: u64) -> Result<String> {
    let failed = |e: std::io::Error| Error::new(Code::Io, path.display().to_string()).caused_by(e);
    if std::fs::metadata(path).map_err(failed)?.len() > most {
        return Err(Error::new(Code::BadArgument, format!("{}: more than {most} bytes", path.display())));
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// Writes one, with the folder that it lies in. Errors: `Io`.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| Error::new(Code::Io, folder.display().to_string()).caused_by(e))?;
    }
    output::file(&path.to_string_lossy(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_as_it_was_written_and_no_more_of_it() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a").join("b.json");
        assert_eq!(read(&path, 9).unwrap_err().code(), Code::Io, "nothing is there");
        write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), "12345");
        let e = read(&path, 4).unwrap_err();
        assert!(e.code() == Code::BadArgument && e.to_string().contains("more than 4 bytes"), "{e}");
        assert_eq!(write(&path.join("c.json"), "").unwrap_err().code(), Code::Io, "its folder is a file");
    }
}
