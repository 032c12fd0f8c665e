//! NumPy's array files (`.npy`): one array each, read into host tensors and written from them.
//!
//! Read: versions 1.0, 2.0 and 3.0, C and Fortran order, both byte orders; f2 f4 f8, i1 to i8, u1 to u8. NumPy has no
//! bf16: it is stored as u2 (the upper halves of the f32 bits; ml_dtypes writes V2, which is read, too) and becomes bf16
//! where the caller says so. Written: version 1.0, C order, little-endian, in one go by a rename. The format is that of
//! `numpy.lib.format`; nothing is ever unpickled or evaluated.
//!
//! A header is believed only as far as the file's size agrees with it, and that is looked at before memory is taken.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::dtype::DType;
use super::error::{Code, Error, Result};
use super::host::{HostTensor, count};
use super::os;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Longest header taken: NumPy itself refuses more than 10,000 bytes unless told otherwise.
const MOST_HEADER: u64 = 1 << 16;
/// Most dimensions: NumPy's own limit.
const MOST_DIMS: usize = 64;

/// What the header says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Header {
    dtype: DType,
    big_endian: bool,
    fortran: bool,
    shape: Vec<u64>,
}

fn bad(what: impl Into<String>) -> Error {
    Error::new(Code::ArrayFile, what)
}

/// Reads one array. Errors name the file.
pub fn read(path: &Path) -> Result<HostTensor> {
    let name = path.display();
    let unreadable = |e: std::io::Error| bad(format!("{name} cannot be read")).caused_by(e);
    // A pipe has no size that a header could be checked against, and opening one may wait for ever.
    let meta = fs::metadata(path).map_err(unreadable)?;
    if !meta.is_file() {
        return Err(bad(format!("{name} is no regular file")));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let available = os::memory().map_or(u64::MAX, |m| m.1);
    read_from(&mut file, meta.len(), available).map_err(|e| Error::new(e.code(), format!("{name}: {}", e.detail())))
}

/// Reads one array out of `size` bytes.
fn read_from(from: &mut impl Read, size: u64, available: u64) -> Result<HostTensor> {
    let broken = |e: std::io::Error| bad("ends early").caused_by(e);
    let mut start = [0u8; 8];
    if size < 10 {
        return Err(bad(format!("{size} bytes: too short for a .npy file")));
    }
    from.read_exact(&mut start).map_err(broken)?;
    if start[..6] != MAGIC[..] {
        return Err(bad("no .npy file: it does not begin with \\x93NUMPY"));
    }
    let field = match (start[6], start[7]) {
        (1, 0) => 2,
        (2 | 3, 0) => 4,
        (major, minor) => return Err(bad(format!("format version {major}.{minor}; known: 1.0, 2.0, 3.0"))),
    };
    let mut length = [0u8; 4];
    from.read_exact(&mut length[..field]).map_err(broken)?;
    let length = u64::from(u32::from_le_bytes(length));
    let rest = size - 8 - field as u64;
    if length > rest {
        return Err(bad(format!("the header claims {length} bytes, {rest} are left in the file")));
    }
    if length > MOST_HEADER {
        return Err(bad(format!("a header of {length} bytes; at most {MOST_HEADER} are read")));
    }
    let mut text = vec![0u8; length as usize];
    from.read_exact(&mut text).map_err(broken)?;
    let header = parse(&text)?;
    let want = count(&header.shape).ok().and_then(|n| n.checked_mul(header.dtype.size()));
    let have = rest - length;
    match want {
        None => return Err(bad(format!("the shape {:?} exceeds 64 bits", header.shape))),
        Some(want) if want != have => {
            let (shape, dtype) = (&header.shape, header.dtype);
            return Err(bad(format!("{shape:?} of {dtype} needs {want} bytes of data, the file has {have}")));
        }
        Some(_) => {}
    }
    // Fortran order needs the array twice.
    let need = have.saturating_mul(if header.fortran { 2 } else { 1 });
    if need > available {
        let why = format!("{need} bytes are needed to read it, the host has {available} free");
        return Err(Error::new(Code::OutOfHostMemory, why));
    }
    let mut tensor = HostTensor::zeros(header.dtype, &header.shape)?;
    from.read_exact(tensor.bytes_mut()).map_err(broken)?;
    if header.big_endian {
        for element in tensor.bytes_mut().chunks_exact_mut(header.dtype.size() as usize) {
            element.reverse();
        }
    }
    if header.fortran { row_major(&tensor) } else { Ok(tensor) }
}

/// The same elements with the last axis, instead of the first, varying fastest.
fn row_major(t: &HostTensor) -> Result<HostTensor> {
    let mut out = HostTensor::zeros(t.dtype, &t.shape)?;
    let size = t.dtype.size() as usize;
    // Distances in the source, in elements. None overflows: the product of all extents did not, unless one is zero.
    let mut steps = Vec::with_capacity(t.shape.len());
    let mut step = 1usize;
    for d in &t.shape {
        steps.push(step);
        step = step.saturating_mul(*d as usize);
    }
    let mut at = vec![0u64; t.shape.len()];
    let mut from = 0usize;
    for element in out.bytes_mut().chunks_exact_mut(size) {
        element.copy_from_slice(&t.bytes()[from * size..(from + 1) * size]);
        for axis in (0..at.len()).rev() {
            at[axis] += 1;
            from += steps[axis];
            if at[axis] < t.shape[axis] {
                break;
            }
            from -= steps[axis] * at[axis] as usize;
            at[axis] = 0;
        }
    }
    Ok(out)
}

/// A tensor of u16 as the bf16 whose bits it holds; others unchanged.
pub fn as_bf16(mut t: HostTensor) -> HostTensor {
    if t.dtype == DType::U16 {
        t.dtype = DType::BF16;
    }
    t
}

/// Reads the header's Python literal: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`. No recursion: the
/// grammar has no nesting beyond the one tuple.
fn parse(text: &[u8]) -> Result<Header> {
    let mut at = Scanner { text, at: 0 };
    let (mut descr, mut order, mut shape) = (None, None, None);
    at.expect(b'{')?;
    while !at.accept(b'}') {
        let key = at.string()?;
        at.expect(b':')?;
        let twice = match key.as_str() {
            "descr" => descr.replace(at.descr()?).is_some(),
            "fortran_order" => order.replace(at.boolean()?).is_some(),
            "shape" => shape.replace(at.tuple()?).is_some(),
            _ => return Err(bad(format!("the header has an unknown entry '{}'", short(&key)))),
        };
        if twice {
            return Err(bad(format!("the header has '{key}' twice")));
        }
        if !at.accept(b',') {
            at.expect(b'}')?;
            break;
        }
    }
    at.end()?;
    let (Some(descr), Some(fortran), Some(shape)) = (descr, order, shape) else {
        return Err(bad("the header lacks descr, fortran_order or shape"));
    };
    let (dtype, big_endian) = dtype_of(&descr)?;
    Ok(Header { dtype, big_endian, fortran, shape })
}

/// NumPy's type text: byte order, kind, bytes.
fn dtype_of(descr: &str) -> Result<(DType, bool)> {
    let refuse = |why: &str| bad(format!("dtype '{}': {why}", short(descr)));
    let mut letters = descr.chars();
    let order = letters.next().unwrap_or(' ');
    let (order, kind) = if "<>|=".contains(order) { (order, letters.as_str()) } else { ('|', descr) };
    let dtype = match kind {
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        // V2 is how ml_dtypes' bfloat16 is written.
        "u2" | "V2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "b1" | "?" => return Err(refuse("no op computes with booleans; save it with .astype('u1')")),
        k if k.starts_with('c') => return Err(refuse("complex numbers are not supported; save .real and .imag apart")),
        k if k.starts_with('f') => return Err(refuse("a float of this length is not supported; save it as f8")),
        k if k.starts_with('O') => return Err(refuse("Python objects are never unpickled")),
        k if k.starts_with(['U', 'S', 'a']) => return Err(refuse("text is not supported")),
        k if k.starts_with(['M', 'm']) => return Err(refuse("times are not supported; save it with .astype('i8')")),
        _ => return Err(refuse("unknown; supported: f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8")),
    };
    match order {
        '<' => Ok((dtype, false)),
        '>' => Ok((dtype, true)),
        '|' if dtype.size() == 1 || kind == "V2" => Ok((dtype, false)),
        _ => Err(refuse("the byte order is not told; expected < or >")),
    }
}

/// At most 40 characters, so that an error stays a line.
fn short(text: &str) -> String {
    text.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect()
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn blank(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }
    fn accept(&mut self, byte: u8) -> bool {
        self.blank();
        let there = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(there);
        there
    }
    fn unexpected(&self, want: &str) -> Error {
        let here = self.text.get(self.at).map_or("the end".to_string(), |b| format!("'{}'", b.escape_ascii()));
        bad(format!("the header has {here} at byte {}, expected {want}", self.at))
    }
    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.accept(byte) { Ok(()) } else { Err(self.unexpected(&format!("'{}'", char::from(byte)))) }
    }
    fn end(&mut self) -> Result<()> {
        self.blank();
        if self.at == self.text.len() { Ok(()) } else { Err(self.unexpected("the end")) }
    }
    /// A quoted text without escapes; NumPy writes no other here.
    fn string(&mut self) -> Result<String> {
        self.blank();
        let quote = match self.text.get(self.at) {
            Some(q @ (b'\'' | b'"')) => *q,
            _ => return Err(self.unexpected("a text in quotes")),
        };
        let from = self.at + 1;
        let length = self.text[from..].iter().position(|b| *b == quote);
        let Some(length) = length else { return Err(bad("the header has a text without an end")) };
        self.at = from + length + 1;
        let inside = &self.text[from..from + length];
        if !inside.is_ascii() || inside.contains(&b'\\') {
            return Err(bad("the header has a text that is not plain ASCII"));
        }
        Ok(String::from_utf8_lossy(inside).into_owned())
    }
    fn descr(&mut self) -> Result<String> {
        self.blank();
        match self.text.get(self.at) {
            Some(b'[' | b'(') => Err(bad("records of several fields are not supported; save each field alone")),
            _ => self.string(),
        }
    }
    fn boolean(&mut self) -> Result<bool> {
        self.blank();
        for (word, value) in [("True", true), ("False", false)] {
            if self.text[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.unexpected("True or False"))
    }
    fn tuple(&mut self) -> Result<Vec<u64>> {
        let mut out = Vec::new();
        self.expect(b'(')?;
        while !self.accept(b')') {
            if self.accept(b'-') {
                return Err(bad("the shape has a negative dimension"));
            }
            let digits: Vec<u8> = self.text[self.at..].iter().copied().take_while(u8::is_ascii_digit).collect();
            if digits.is_empty() {
                return Err(self.unexpected("a size"));
            }
            self.at += digits.len();
            // Python 2 wrote 3L.
            if self.text.get(self.at) == Some(&b'L') {
                self.at += 1;
            }
            let value = String::from_utf8_lossy(&digits).parse::<u64>();
            out.push(value.map_err(|_| bad("the shape has a dimension beyond 64 bits"))?);
            if out.len() > MOST_DIMS {
                return Err(bad(format!("the shape has more than {MOST_DIMS} dimensions")));
            }
            if !self.accept(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(out)
    }
}

/// NumPy's type text of a dtype.
fn descr_of(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 | DType::BF16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
    }
}

/// The bytes in front of a tensor's data: version 1.0, padded to a multiple of 64.
fn header_of(t: &HostTensor) -> Vec<u8> {
    let sizes: Vec<String> = t.shape.iter().map(u64::to_string).collect();
    let comma = if sizes.len() == 1 { "," } else { "" };
    let mut text = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        descr_of(t.dtype),
        sizes.join(", ")
    );
    let pad = (64 - (10 + text.len() + 1) % 64) % 64;
    text.push_str(&" ".repeat(pad));
    text.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    // At most 64 dimensions of 20 digits: far below 65,536.
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
    out
}

/// A tensor as the bytes of a `.npy` file.
pub fn encode(t: &HostTensor) -> Vec<u8> {
    let mut out = header_of(t);
    out.extend_from_slice(t.bytes());
    out
}

/// Writes arrays to their files. Each file is complete or as it was: all are written beside their places first, then
/// renamed. Special files (a pipe, /dev/null) are written directly.
pub fn write(arrays: &[(&Path, &HostTensor)]) -> Result<()> {
    let failed = |path: &Path, e: std::io::Error| Error::new(Code::Io, path.display().to_string()).caused_by(e);
    let mut parts: Vec<(PathBuf, PathBuf)> = Vec::new();
    let mut go = || -> Result<()> {
        for (path, tensor) in arrays {
            // A link's target is replaced, not the link.
            let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
            if fs::metadata(&place).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
                fs::write(&place, encode(tensor)).map_err(|e| failed(path, e))?;
                continue;
            }
            let part = os::beside(&place, "part");
            let mut file = File::create_new(&part).map_err(|e| failed(path, e))?;
            parts.push((part, place));
            let mut fill = || -> std::io::Result<()> {
                file.write_all(&header_of(tensor))?;
                file.write_all(tensor.bytes())?;
                file.sync_all()
            };
            fill().map_err(|e| failed(path, e))?;
        }
        for (part, place) in &parts {
            fs::rename(part, place).map_err(|e| failed(place, e))?;
        }
        Ok(())
    };
    let result = go();
    if result.is_err() {
        for (part, _) in &parts {
            // Those that were renamed already are gone; nobody can be told about the others.
            let _ = fs::remove_file(part);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of the given header text and data.
    fn file(version: u8, text: &str, data: &[u8]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([version, 0]);
        if version == 1 {
            out.extend((text.len() as u16).to_le_bytes());
        } else {
            out.extend((text.len() as u32).to_le_bytes());
        }
        out.extend(text.as_bytes());
        out.extend(data);
        out
    }

    fn decode(bytes: &[u8]) -> Result<HostTensor> {
        read_from(&mut &bytes[..], bytes.len() as u64, 1 << 30)
    }

    fn header(descr: &str, fortran: &str, shape: &str) -> String {
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}")
    }

    #[test]
    fn every_dtype_survives_a_round_trip() {
        for dtype in DType::ALL {
            for shape in [&[][..], &[0], &[3], &[2, 3], &[2, 0, 5], &[1, 2, 3, 4]] {
                let mut t = HostTensor::zeros(dtype, shape).unwrap();
                for (i, b) in t.bytes_mut().iter_mut().enumerate() {
                    *b = i as u8 ^ 0x5A;
                }
                let bytes = encode(&t);
                assert_eq!((bytes.len() - t.bytes().len()) % 64, 0, "NumPy aligns data to 64 bytes");
                let mut back = decode(&bytes).unwrap();
                if dtype == DType::BF16 {
                    assert_eq!(back.dtype, DType::U16);
                    back = as_bf16(back);
                }
                assert_eq!(back, t);
            }
        }
    }

    /// Bytes as numpy 2.x writes them for np.arange(6, dtype='<f4').reshape(2, 3).
    #[test]
    fn numpys_own_bytes_are_read() {
        let text = format!("{:<117}\n", header("<f4", "False", "(2, 3)"));
        assert_eq!((10 + text.len()) % 64, 0);
        let data: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        for version in [1, 2, 3] {
            let t = decode(&file(version, &text, &data)).unwrap();
            assert_eq!((t.dtype, t.shape.as_slice()), (DType::F32, &[2, 3][..]));
            assert_eq!(t.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        }
        let mine = encode(&decode(&file(1, &text, &data)).unwrap());
        assert_eq!(mine, file(1, &text, &data), "byte for byte what NumPy writes");
    }

    #[test]
    fn other_spellings_of_the_header_are_read() {
        for text in [
            "{\"shape\":(2L,),\"fortran_order\":False,\"descr\":\"<i2\"}",
            "  { 'fortran_order' : False , 'shape' : ( 2 , ) , 'descr' : '<i2' } \n",
        ] {
            assert_eq!(decode(&file(1, text, &[1, 0, 2, 0])).unwrap().to_vec::<i16>().unwrap(), [1, 2]);
        }
        assert_eq!(decode(&file(1, &header("|V2", "False", "()"), &[0x80, 0x3F])).unwrap().dtype, DType::U16);
    }

    #[test]
    fn big_endian_and_fortran_order_are_put_right() {
        let data: Vec<u8> = [1i32, 4, 2, 5, 3, 6].iter().flat_map(|v| v.to_be_bytes()).collect();
        let t = decode(&file(1, &header(">i4", "True", "(2, 3)"), &data)).unwrap();
        assert_eq!(t.to_vec::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
        // Element [i, j, k] of a 2 by 3 by 4 array lies at i + 2 j + 6 k.
        let data: Vec<u8> = (0..24).collect();
        let t = decode(&file(1, &header("|u1", "True", "(2, 3, 4)"), &data)).unwrap();
        let at = |i: usize, j: usize, k: usize| t.bytes()[(i * 3 + j) * 4 + k] as usize;
        for (i, j, k) in [(0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 3), (1, 2, 3), (1, 1, 2)] {
            assert_eq!(at(i, j, k), i + 2 * j + 6 * k);
        }
        assert!(decode(&file(1, &header("|u1", "True", "(0, 3)"), &[])).unwrap().is_empty());
    }

    #[test]
    fn other_types_are_refused_with_a_reason() {
        for (descr, word) in [
            ("|b1", "astype('u1')"),
            ("?", "astype('u1')"),
            ("<c8", "complex"),
            ("<f16", "f8"),
            ("|O", "unpickled"),
            ("<U3", "text"),
            ("<M8[ns]", "times"),
            ("|V4", "supported"),
            ("<i3", "supported"),
            ("f4", "byte order"),
            ("=f4", "byte order"),
            ("", "supported"),
        ] {
            let e = decode(&file(1, &header(descr, "False", "(1,)"), &[0; 16])).unwrap_err();
            assert!(e.code() == Code::ArrayFile && e.detail().contains(word), "{descr}: {e}");
        }
        let fields = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}";
        assert!(decode(&file(1, fields, &[0; 4])).unwrap_err().detail().contains("fields"));
    }

    #[test]
    fn hostile_headers_are_one_line_errors() {
        let f4 = |shape: &str| header("<f4", "False", shape);
        let deep = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {}", "(".repeat(60_000));
        let many = f4(&format!("({})", "1,".repeat(65)));
        let cases: Vec<(Vec<u8>, &str)> = vec![
            (Vec::new(), "too short"),
            (b"\x93NUMPY\x01\x00".to_vec(), "too short"),
            (b"PK\x03\x04 an archive".to_vec(), "NUMPY"),
            (file(4, "{}", &[]), "version 4.0"),
            (file(1, "", &[]), "the end"),
            (file(1, "{}", &[]), "lacks"),
            (file(1, "{'descr': '<f4'}", &[]), "lacks"),
            (file(1, "{'descr': '<f4', 'descr': '<f4'}", &[]), "twice"),
            (file(1, "{'descr': '<f4', 'evil': __import__('os')}", &[]), "unknown entry 'evil'"),
            (file(1, "{'descr': '<f4', 'fortran_order': 0}", &[]), "True or False"),
            (file(1, &f4("(-1,)"), &[0; 4]), "negative"),
            (file(1, &f4("(2,)"), &[0; 7]), "needs 8 bytes of data, the file has 7"),
            (file(1, &f4("(2,)"), &[0; 9]), "needs 8 bytes of data, the file has 9"),
            (file(1, &f4("(1000000000000,)"), &[0; 8]), "needs 4000000000000 bytes"),
            (file(1, &f4("(4294967296, 4294967296)"), &[0; 8]), "exceeds 64 bits"),
            (file(1, &f4("(9223372036854775807,)"), &[0; 8]), "exceeds 64 bits"),
            (file(1, &f4("(99999999999999999999,)"), &[0; 8]), "beyond 64 bits"),
            (file(1, &f4("(1.5,)"), &[0; 8]), "expected ')'"),
            (file(1, &f4("5"), &[0; 8]), "expected '('"),
            (file(1, &format!("{}x", f4("(1,)")), &[0; 4]), "expected the end"),
            (file(1, &many, &[0; 4]), "more than 64"),
            (file(1, &deep, &[0; 4]), "a size"),
            (file(1, "{'descr", &[]), "without an end"),
            (file(2, &" ".repeat(70_000), &[]), "at most 65536"),
        ];
        for (bytes, word) in cases {
            let e = decode(&bytes).unwrap_err();
            let line = e.to_string();
            assert!(e.code() == Code::ArrayFile && line.contains(word), "expected '{word}': {line}");
            assert!(!line.contains('\n') && line.len() < 300, "{line}");
        }
        let mut beyond = file(2, &f4("(1,)"), &[0; 4]);
        beyond[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(decode(&beyond).unwrap_err().detail().contains("claims 4294967295 bytes"));
    }

    /// A sparse file may hold what its header says and still be more than the machine has.
    #[test]
    fn memory_is_asked_before_it_is_taken() {
        let text = header("<f8", "True", "(1099511627776,)");
        let start = file(1, &text, &[]);
        let size = start.len() as u64 + (8 << 40);
        let e = read_from(&mut &start[..], size, 1 << 34).unwrap_err();
        assert_eq!(e.code(), Code::OutOfHostMemory);
    }

    /// One byte changed anywhere: an error or an array, never a panic; an array always has the bytes it should.
    #[test]
    fn damaged_files_never_panic() {
        let good = file(1, &header("<f4", "True", "(2, 3)"), &[7; 24]);
        for at in 0..good.len() {
            for change in [0u8, 1, 9, b'\'', b'(', b'9', 0x7F, 0xFF] {
                let mut bytes = good.clone();
                bytes[at] = change;
                if let Ok(t) = decode(&bytes) {
                    assert_eq!(t.len() * t.dtype.size(), t.bytes().len() as u64);
                }
            }
            assert!(decode(&good[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn files_are_replaced_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.npy"), dir.path().join("b.npy"));
        let t = HostTensor::from_slice(&[1.0f32, 2.0], &[2]).unwrap();
        std::fs::write(&a, "old").unwrap();
        let nowhere = dir.path().join("none/b.npy");
        assert!(write(&[(&a, &t), (&nowhere, &t)]).unwrap_err().to_string().contains("none/b.npy"));
        assert_eq!(std::fs::read(&a).unwrap(), b"old", "nothing is replaced unless all can be");
        write(&[(&a, &t), (&b, &t)]).unwrap();
        assert_eq!((read(&a).unwrap(), read(&b).unwrap()), (t.clone(), t));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no parts are left");
        assert!(read(&dir.path().join("c.npy")).unwrap_err().to_string().contains("c.npy"));
        assert!(read(dir.path()).unwrap_err().detail().contains("no regular file"));
    }
}
