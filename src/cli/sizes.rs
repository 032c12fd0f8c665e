//! `--sizes` and `--shape`.

use crate::base::{Code, Error, Result};

/// Most sizes in one sweep; more is a typing error.
const MOST: usize = 10_000;

/// Reads sizes: `128..4096` doubles, `128..4096:128` steps, `128..4096x1.5` multiplies, `64,100,4096` lists; forms may
/// be mixed with commas.
pub(super) fn parse_sizes(text: &str) -> Result<Vec<u64>> {
    let bad = |why: String| Error::new(Code::BadArgument, format!("--sizes {text}: {why}"));
    let mut sizes = Vec::new();
    for part in text.split(',') {
        let number = |s: &str| -> Result<u64> {
            match s.trim().parse::<u64>() {
                Ok(0) => Err(bad("sizes start at 1".into())),
                Ok(v) => Ok(v),
                Err(_) => {
                    Err(bad(format!("'{s}' is not a size; try 128..4096, 128..4096:128, 128..4096x1.5 or 64,256")))
                }
            }
        };
        let Some((low, rest)) = part.split_once("..") else {
            sizes.push(number(part)?);
            continue;
        };
        let low = number(low)?;
        let (high, step, factor) = match (rest.split_once(':'), rest.split_once('x')) {
            (Some((high, step)), _) => (number(high)?, Some(number(step)?), 0.0),
            (None, Some((high, factor))) => {
                let f: f64 = factor.parse().map_err(|_| bad(format!("'{factor}' is not a factor")))?;
                if !(f > 1.0 && f.is_finite()) {
                    return Err(bad(format!("the factor {factor} must be above 1")));
                }
                (number(high)?, None, f)
            }
            (None, None) => (number(rest)?, None, 2.0),
        };
        if high < low {
            return Err(bad(format!("the range runs backwards; did you mean {high}..{low}?")));
        }
        let mut at = low;
        while at <= high {
            sizes.push(at);
            if sizes.len() > MOST {
                return Err(bad(format!("more than {MOST} sizes")));
            }
            let next = match step {
                Some(step) => at.checked_add(step),
                None => Some(((at as f64 * factor).round() as u64).max(at + 1)),
            };
            match next {
                Some(next) if next > at => at = next,
                _ => break,
            }
        }
    }
    Ok(sizes)
}

/// Reads a shape: `1024x512x64`.
pub(super) fn parse_shape(text: &str) -> Result<Vec<u64>> {
    text.split('x')
        .map(|p| {
            p.parse::<u64>().map_err(|_| {
                Error::new(Code::BadArgument, format!("--shape {text}: '{p}' is not a size; try 1024x512x64"))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms() {
        assert_eq!(parse_sizes("128..1024").unwrap(), [128, 256, 512, 1024]);
        assert_eq!(parse_sizes("128..1000").unwrap(), [128, 256, 512]);
        assert_eq!(parse_sizes("128..512:128").unwrap(), [128, 256, 384, 512]);
        assert_eq!(parse_sizes("100..400x1.5").unwrap(), [100, 150, 225, 338]);
        assert_eq!(parse_sizes("64,100..101,7").unwrap(), [64, 100, 7]);
        assert_eq!(parse_shape("1024x512x64").unwrap(), [1024, 512, 64]);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, hint) in [
            ("0", "start at 1"),
            ("4096..128", "did you mean 128..4096"),
            ("a", "not a size"),
            ("", "not a size"),
            ("1..2x1", "above 1"),
            ("1..1000000:1", "more than"),
            ("1..", "not a size"),
            ("-5", "not a size"),
            ("1..9x0.5", "above 1"),
            ("99999999999999999999", "not a size"),
        ] {
            let e = parse_sizes(text).unwrap_err();
            assert!(e.to_string().contains(hint), "{text}: {e}");
        }
        assert!(parse_shape("4x").is_err());
    }
}
