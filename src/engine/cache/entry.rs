//! What a kept kernel is called, and its file: a head that says what it is, the compiled form, and a digest of both.
//!
//! ```text
//! gpuctlKC | layout u32 | bytes of the key's text u32 | bytes of the payload u64 | key's text | payload | SHA-256 of all before
//! ```
//! Numbers are little-endian. The key's text is there in full: a file that is whole but of another kernel is not used, whatever
//! it is called, and `head -c 600 FILE` shows whose it is.

use crate::base::sha256::{sha256, sha256_hex};
use crate::base::{DType, DeviceInfo};
use crate::kernel;
use crate::kernel::source::Text;

/// Version of the layout; also the folder's name, so that programs of different versions do not see each other's files.
pub(super) const LAYOUT: u32 = 1;
const MAGIC: &[u8; 8] = b"gpuctlKC";
const HEAD: usize = 24;
const DIGEST: usize = 32;

/// What a compiled kernel depends on.
///
/// The device's place (uid, id) is not part of it: two cards of one kind and driver share what was compiled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Key {
    text: String,
    name: String,
}

impl Key {
    /// Of a text in this variant and dtype on a device of this kind with this driver and compiler.
    pub(in crate::engine) fn of(info: &DeviceInfo, source: &Text, variant: &str, dtype: DType) -> Self {
        Self::of_version(kernel::VERSION, info, source, variant, dtype)
    }

    fn of_version(version: u32, info: &DeviceInfo, source: &Text, variant: &str, dtype: DType) -> Self {
        // Quoted, so that no name can pass for two lines.
        let mut text = format!(
            "kernels of gpuctl, version {version}\nlanguage {:?}\nentry {:?}\nvariant {variant:?}\ndtype {dtype}\ntext {}\n\
             backend {}\ndevice {:?}\ndriver {:?}\napi {:?}\n",
            source.lang,
            source.entry,
            sha256_hex(source.text.as_bytes()),
            info.backend,
            info.name,
            info.driver,
            info.api,
        );
        if let Some(compiler) = info.compiler() {
            text.push_str(&format!("compiler {compiler:?}\n"));
        }
        let name = sha256_hex(text.as_bytes());
        Key { text, name }
    }

    /// Name of its file.
    pub(super) fn file(&self) -> String {
        format!("{}.kernel", self.name)
    }
}

/// The bytes of a file.
pub(super) fn seal(key: &Key, payload: &[u8]) -> Vec<u8> {
    let text = key.text.as_bytes();
    let mut out = Vec::with_capacity(HEAD + text.len() + payload.len() + DIGEST);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&LAYOUT.to_le_bytes());
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    out.extend_from_slice(text);
    out.extend_from_slice(payload);
    let digest = sha256(&out);
    out.extend_from_slice(&digest);
    out
}

/// The compiled form in a file's bytes, or why it is none of this key.
pub(super) fn open<'b>(key: &Key, file: &'b [u8]) -> Result<&'b [u8], &'static str> {
    let cut = file.len().checked_sub(DIGEST).filter(|cut| *cut >= HEAD).ok_or("it is too short")?;
    let (sealed, digest) = file.split_at(cut);
    if !sealed.starts_with(MAGIC) {
        return Err("it is no kept kernel");
    }
    if sha256(sealed) != digest {
        return Err("its digest is not that of its contents");
    }
    payload(key, sealed)
}

/// The compiled form in what the digest vouches for.
fn payload<'b>(key: &Key, sealed: &'b [u8]) -> Result<&'b [u8], &'static str> {
    let text = key.text.as_bytes();
    let expected = [&LAYOUT.to_le_bytes()[..], &(text.len() as u32).to_le_bytes()].concat();
    let head = sealed.split_at_checked(HEAD).ok_or("it is too short")?;
    if head.0.get(8..16) != Some(&expected[..]) {
        return Err("it is of another layout or kernel");
    }
    let Some(bytes) = head.1.strip_prefix(text) else { return Err("it is of another kernel") };
    if head.0.get(16..HEAD) != Some(&(bytes.len() as u64).to_le_bytes()[..]) {
        return Err("its length is wrong");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Backend, Lang};

    fn text(of: &str) -> Text {
        Text { lang: Lang::OpenclC, text: of.into(), entry: "relu".into() }
    }

    fn key(of: &str) -> Key {
        Key::of(&DeviceInfo::ordinary_gpu(), &text(of), "tiled", DType::F32)
    }

    /// Everything that changes what a compiler makes changes the file's name; where the device is does not.
    #[test]
    fn each_part_of_a_key_counts() {
        let gpu = DeviceInfo::ordinary_gpu;
        let plain = key("a");
        let of = |info: DeviceInfo| Key::of(&info, &text("a"), "tiled", DType::F32);
        let mut others = vec![
            key("b"),
            Key::of(&gpu(), &text("a"), "plain", DType::F32),
            Key::of(&gpu(), &text("a"), "tiled", DType::F64),
            Key::of(&gpu(), &Text { entry: "gelu".into(), ..text("a") }, "tiled", DType::F32),
            Key::of(&gpu(), &Text { lang: Lang::Cuda, ..text("a") }, "tiled", DType::F32),
            Key::of_version(kernel::VERSION + 1, &gpu(), &text("a"), "tiled", DType::F32),
            of(DeviceInfo { name: "another GPU".into(), ..gpu() }),
            of(DeviceInfo { driver: "2".into(), ..gpu() }),
            of(DeviceInfo { api: "OpenCL 3.0".into(), ..gpu() }),
            of(DeviceInfo { backend: Backend::Cuda, ..gpu() }),
            of(DeviceInfo { notes: vec!["kernels by NVRTC 12.8 (libnvrtc.so.12)".into()], ..gpu() }),
            of(DeviceInfo { notes: vec!["PCI 3b".into(), "kernels by NVRTC 13.0 (libnvrtc.so.13)".into()], ..gpu() }),
            // What moves over a border between two parts.
            of(DeviceInfo { name: "ordinary GPU\"\ndriver \"".into(), ..gpu() }),
            plain.clone(),
        ];
        let mut names: Vec<String> = others.iter().map(Key::file).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), others.len());
        others.pop();
        assert!(others.iter().all(|k| open(k, &seal(&plain, b"machine code")).is_err()));
        assert_eq!(of(DeviceInfo { id: "opencl:7".into(), uid: "elsewhere".into(), ..gpu() }), plain);
        // Of a compiler the version counts, not where it lies; other remarks mean nothing.
        let by = |note: &str| of(DeviceInfo { notes: vec![note.into()], ..gpu() });
        assert_eq!(by("kernels by NVRTC 12.8 (/a)"), by("kernels by NVRTC 12.8 (/b)"));
        assert_eq!(by("PCI 3b"), plain);
        assert!(plain.file().len() == 71 && plain.file().bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.'));
    }

    type Open = for<'b> fn(&Key, &'b [u8]) -> Result<&'b [u8], &'static str>;

    /// What a reader lets through of all files that are not exactly as they were written: each bit flipped, each shorter
    /// length, one byte more, and another kernel's file under this one's name.
    fn let_through(open: Open) -> Vec<String> {
        let (key, other) = (key("a"), key("b"));
        let whole = seal(&key, b"machine code");
        assert_eq!(open(&key, &whole), Ok(&b"machine code"[..]));
        let mut bad = vec![("longer".to_string(), [&whole[..], b"x"].concat())];
        bad.push(("of another kernel".into(), seal(&other, b"machine code")));
        bad.push(("no kernel".into(), b"GIF89a".repeat(100)));
        bad.extend((0..whole.len()).map(|n| (format!("{n} bytes"), whole[..n].to_vec())));
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                bad.push((format!("bit {bit} of byte {at}"), flipped));
            }
        }
        bad.into_iter().filter(|(_, bytes)| open(&key, bytes).is_ok()).map(|(what, _)| what).collect()
    }

    #[test]
    fn only_what_was_written_is_opened() {
        assert_eq!(let_through(open), Vec::<String>::new());
    }

    /// The planted faults: a reader that does not look at the digest, and one that does not look whose file it is.
    #[test]
    fn a_reader_that_does_not_look_is_found() {
        fn trusting<'b>(key: &Key, file: &'b [u8]) -> Result<&'b [u8], &'static str> {
            payload(key, &file[..file.len().saturating_sub(DIGEST)])
        }
        fn careless<'b>(key: &Key, file: &'b [u8]) -> Result<&'b [u8], &'static str> {
            let cut = file.len().checked_sub(DIGEST).ok_or("short")?;
            let whole = sha256(&file[..cut]) == file[cut..];
            let from = HEAD + key.text.len();
            file.get(from..cut).filter(|_| whole).ok_or("broken")
        }
        assert!(let_through(trusting).iter().any(|w| w.starts_with("bit ")));
        assert_eq!(let_through(careless), ["of another kernel"]);
    }
}
