//! Whether a cubin is whole.

/// True for a 64-bit little-endian ELF file for CUDA (machine 190) whose tables and sections all lie inside.
///
/// `cuModuleLoadData` is given no length: a truncated file from a cache would be read beyond its end.
pub fn whole_cubin(image: &[u8]) -> bool {
    let at = |offset: usize, len: usize| -> Option<u64> {
        let bytes = image.get(offset..offset.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
    };
    let table = |offset: usize, size: usize, count: usize| -> Option<(u64, u64, u64)> {
        Some((at(offset, 8)?, at(size, 2)?, at(count, 2)?))
    };
    let inside = |offset: u64, len: u64| offset.checked_add(len).is_some_and(|end| end <= image.len() as u64);
    let check = || -> Option<bool> {
        if !image.starts_with(b"\x7FELF\x02\x01") || at(0x12, 2)? != 190 {
            return Some(false);
        }
        // Offsets of fields in Elf64_Ehdr, Elf64_Shdr and Elf64_Phdr, from the System V ABI.
        let (sections, size, count) = table(0x28, 0x3A, 0x3C)?;
        if count == 0 || size < 0x40 || !inside(sections, size * count) {
            return Some(false);
        }
        for i in 0..count {
            let header = (sections + i * size) as usize;
            let no_bits = at(header + 4, 4)? == 8;
            if !no_bits && !inside(at(header + 0x18, 8)?, at(header + 0x20, 8)?) {
                return Some(false);
            }
        }
        let (segments, size, count) = table(0x20, 0x36, 0x38)?;
        if count > 0 && (size < 0x38 || !inside(segments, size * count)) {
            return Some(false);
        }
        for i in 0..count {
            let header = (segments + i * size) as usize;
            if !inside(at(header + 8, 8)?, at(header + 0x20, 8)?) {
                return Some(false);
            }
        }
        Some(true)
    };
    check().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with one section of four bytes behind its tables.
    fn small_cubin() -> Vec<u8> {
        let mut f = vec![0u8; 0x40 + 0x40 + 4];
        f[..6].copy_from_slice(b"\x7FELF\x02\x01");
        f[0x12] = 190;
        f[0x28] = 0x40;
        (f[0x3A], f[0x3C]) = (0x40, 1);
        (f[0x40 + 4], f[0x40 + 0x18], f[0x40 + 0x20]) = (1, 0x80, 4);
        f
    }

    #[test]
    fn a_cubin_cut_anywhere_is_refused() {
        let whole = small_cubin();
        assert!(whole_cubin(&whole));
        for cut in 0..whole.len() {
            assert!(!whole_cubin(&whole[..cut]), "cut at {cut}");
        }
        let mut other = whole;
        other[0x12] = 62;
        assert!(!whole_cubin(&other), "an x86-64 file");
    }
}
