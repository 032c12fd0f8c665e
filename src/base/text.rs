//! Text from outside on its way to a terminal.

use std::borrow::Cow;

/// The text with every character that moves a cursor, colours, hides or reorders text written as an escape (`\u{1b}`).
/// Line ends and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_hidden) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| if is_hidden(c) { c.escape_unicode().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escaped).collect())
}

/// True for a word without characters that cannot be seen, line ends and tabs included.
pub fn is_plain(word: &str) -> bool {
    !word.chars().any(|c| is_hidden(c) || matches!(c, '\n' | '\t'))
}

/// Controls (C0, C1, DEL), line and paragraph separators, and what sets directions or joins invisibly (Unicode's
/// general categories Cc, Zl, Zp, and the format characters that "Trojan Source", CVE-2021-42574, uses).
fn is_hidden(c: char) -> bool {
    let format = matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
    (c.is_control() && !matches!(c, '\n' | '\t')) || format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_hidden_is_left() {
        for (raw, shown) in [
            ("plain, with spaces: µs ³ \"quotes\"\n\tnext", "plain, with spaces: µs ³ \"quotes\"\n\tnext"),
            ("\u{1b}[31mred\u{7}", "\\u{1b}[31mred\\u{7}"),
            ("a\rb\u{9b}c\u{7f}", "a\\u{d}b\\u{9b}c\\u{7f}"),
            ("gpu\u{202e}upc", "gpu\\u{202e}upc"),
        ] {
            assert_eq!(printable(raw), shown);
            assert_eq!(printable(shown), shown, "an escaped text is plain");
        }
        assert!(is_plain("NVIDIA H100 80GB") && !is_plain("a\nb") && !is_plain("\u{1b}[2J"));
    }
}
