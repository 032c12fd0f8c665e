//! OpenCL's drivers as its loader finds them: small files (`.icd`) that name one library each. Only text is read here; no
//! driver is loaded.

use std::path::{Path, PathBuf};

use crate::base::env::of_other_tools;
use crate::base::{Absence, Backend, Code};

use super::probe::{Folder, ending, text_at};

/// Where loaders look unless a variable says otherwise.
const USUAL: &str = "/etc/OpenCL/vendors";
const END: &str = ".icd";

/// Who names a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// A file.
    By(PathBuf),
    /// A variable of the environment.
    In(&'static str),
}

/// A driver that the loader is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Icd {
    /// Who names it.
    pub named: Named,
    /// The library's name as the loader will use it, or why there is none.
    pub library: Result<String, String>,
}

impl Icd {
    fn in_file(path: PathBuf) -> Self {
        let library = match text_at(&path) {
            Ok(text) => first_line(&text),
            Err(e) => Err(format!("it cannot be read: {e}")),
        };
        Icd { named: Named::By(path), library }
    }

    /// What a list calls it: its file, or the variable.
    pub fn what(&self) -> String {
        match &self.named {
            Named::By(path) => path.display().to_string(),
            Named::In(variable) => (*variable).to_string(),
        }
    }

    /// The reason for which it cannot be used, as a row of the list.
    pub fn absence(&self, code: Code, reason: &str, next: &str) -> Absence {
        Absence {
            backend: Backend::Opencl,
            what: self.what(),
            reason: format!("{}: {reason}", code.name()),
            next: next.to_string(),
        }
    }

    /// The row of a file that names no library.
    pub fn nameless(&self) -> Option<Absence> {
        let why = self.library.as_ref().err()?;
        Some(self.absence(Code::LibraryNotFound, why, "reinstall the driver's package, or remove the file"))
    }
}

/// The library that the text of a `.icd` file names. As in the loader, that is the first line to its last character: blanks
/// and carriage returns belong to the name, and such a driver is not found.
fn first_line(text: &str) -> Result<String, String> {
    match text.split('\n').next() {
        Some(line) if !line.is_empty() => Ok(line.to_string()),
        _ if text.is_empty() => Err("the file is empty; it should name the driver's library".into()),
        _ => Err("its first line is empty; it should name the driver's library".into()),
    }
}

/// Where the loader looks and what it finds there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The place, in words.
    pub place: String,
    /// What is there, by name.
    pub icds: Vec<Icd>,
}

/// What the loader of this process finds. Elsewhere than on Linux drivers are registered in other ways: nothing.
pub fn listing() -> Listing {
    if cfg!(target_os = "linux") {
        listing_by(of_other_tools)
    } else {
        Listing { place: "the system's list of drivers".into(), icds: Vec::new() }
    }
}

/// The same with variables from anywhere.
fn listing_by(variable: impl Fn(&str) -> Option<String>) -> Listing {
    let told = ["OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"].into_iter().find_map(|name| Some((name, variable(name)?)));
    let path = told.as_ref().map_or(USUAL, |(_, value)| value.as_str());
    let mut place = path.to_string();
    let mut icds = match (ending(Path::new(path), END), &told) {
        (Ok(files), _) => files.into_iter().map(Icd::in_file).collect(),
        // What is no folder is one driver: its file, or its library.
        (Err(_), Some(_)) if path.ends_with(END) => vec![Icd::in_file(path.into())],
        (Err(_), Some((name, library))) => vec![Icd { named: Named::In(name), library: Ok(library.clone()) }],
        (Err(e), None) => {
            place = format!("{path} ({e})");
            Vec::new()
        }
    };
    let more = variable("OCL_ICD_FILENAMES").unwrap_or_default();
    let libraries = more.split(':').filter(|l| !l.is_empty());
    icds.extend(libraries.map(|l| Icd { named: Named::In("OCL_ICD_FILENAMES"), library: Ok(l.to_string()) }));
    Listing { place, icds }
}

/// Some of the drivers in a folder of their own. Loaders differ in whether the variable may name a single file, but all take
/// a folder.
#[derive(Debug)]
pub struct Apart {
    folder: Folder,
    /// The copies' paths and what they are copies of.
    copies: Vec<(String, String)>,
}

impl Apart {
    /// Copies the files; drivers without a library are left out. Errors: they cannot be written.
    pub fn of(icds: &[&Icd]) -> std::io::Result<Self> {
        let mut files = Vec::new();
        let mut of = Vec::new();
        for (i, icd) in icds.iter().enumerate() {
            let Ok(library) = &icd.library else { continue };
            let name = match &icd.named {
                Named::By(path) => path.file_name().map(|n| n.to_string_lossy().into_owned()),
                Named::In(_) => None,
            };
            files.push((name.unwrap_or_else(|| format!("driver-{i}{END}")), library.as_str()));
            of.push(icd.what());
        }
        let folder = Folder::with(&files)?;
        let copies = files.iter().map(|(name, _)| folder.0.join(name).display().to_string()).zip(of).collect();
        Ok(Apart { folder, copies })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder.0
    }

    /// The text with the originals in place of the copies.
    pub fn original(&self, text: &str) -> String {
        self.copies.iter().fold(text.to_string(), |text, (copy, original)| text.replace(copy, original))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_library() {
        for text in ["libpocl.so", "libpocl.so\n", "libpocl.so\n\n", "libpocl.so\nlibother.so\n"] {
            assert_eq!(first_line(text).unwrap(), "libpocl.so", "{text:?}");
        }
        // The loader looks for exactly these.
        assert_eq!(first_line("libpocl.so\r\n").unwrap(), "libpocl.so\r");
        assert_eq!(first_line(" libpocl.so ").unwrap(), " libpocl.so ");
        assert!(first_line("").unwrap_err().contains("is empty"));
        assert!(first_line("\nlibpocl.so").unwrap_err().contains("first line"));
    }

    #[test]
    fn drivers_are_found_where_the_loader_finds_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for (name, text) in [("b.icd", "libb.so\n"), ("a.icd", ""), (".icd", "x"), ("c.txt", "x"), ("D.ICD", "x")] {
            std::fs::write(path(name), text).unwrap();
        }
        let of = |set: &[(&str, &str)]| {
            listing_by(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string()))
        };
        let folder = dir.path().to_str().unwrap();
        let found = of(&[("OCL_ICD_VENDORS", folder), ("OPENCL_VENDOR_PATH", "/nowhere")]);
        assert_eq!(found.place, folder);
        let names: Vec<_> = found.icds.iter().map(Icd::what).collect();
        assert_eq!(names, [path("a.icd"), path("b.icd")].map(|p| p.display().to_string()));
        let row = found.icds[0].nameless().unwrap();
        assert!(row.what.ends_with("a.icd") && row.reason.contains("is empty"), "{row:?}");
        assert_eq!((found.icds[1].library.as_deref(), found.icds[1].nameless()), (Ok("libb.so"), None));

        let one = of(&[("OPENCL_VENDOR_PATH", path("b.icd").to_str().unwrap())]);
        assert_eq!(one.icds, found.icds[1..]);
        let gone = of(&[("OCL_ICD_VENDORS", path("gone.icd").to_str().unwrap())]);
        assert!(gone.icds[0].nameless().unwrap().reason.contains("cannot be read"), "{gone:?}");
        let libraries = of(&[("OCL_ICD_VENDORS", "liba.so"), ("OCL_ICD_FILENAMES", "libb.so::libc.so")]);
        let libraries: Vec<_> = libraries.icds.iter().map(|i| (i.what(), i.library.clone().unwrap())).collect();
        let named = |variable: &str, library: &str| (variable.to_string(), library.to_string());
        assert_eq!(
            libraries,
            [
                named("OCL_ICD_VENDORS", "liba.so"),
                named("OCL_ICD_FILENAMES", "libb.so"),
                named("OCL_ICD_FILENAMES", "libc.so")
            ]
        );
    }

    #[test]
    fn drivers_apart_have_a_folder_and_lose_it() {
        let icd = |named, library: &str| Icd { named, library: Ok(library.into()) };
        let file = icd(Named::By("/etc/OpenCL/vendors/a.icd".into()), "liba.so");
        let variable = icd(Named::In("OCL_ICD_FILENAMES"), "libb.so");
        let empty = Icd { library: Err("empty".into()), ..file.clone() };
        let apart = Apart::of(&[&file, &empty, &variable]).unwrap();
        let path = apart.path().to_path_buf();
        let files = ending(&path, END).unwrap();
        assert_eq!(files, [path.join("a.icd"), path.join("driver-2.icd")]);
        assert_eq!(text_at(&files[0]).unwrap(), "liba.so");
        let said = format!("{} and {}", files[0].display(), files[1].display());
        assert_eq!(apart.original(&said), "/etc/OpenCL/vendors/a.icd and OCL_ICD_FILENAMES");
        drop(apart);
        assert!(!path.exists());
    }
}
