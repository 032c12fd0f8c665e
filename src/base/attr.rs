//! Attributes of an op, in ONNX's spelling: alpha, beta, transA, axes, keepdims, ...

use serde::{Deserialize, Serialize};
use std::fmt;

use super::error::{Code, Error};

/// One attribute's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Attr {
    /// An integer; booleans are 0 and 1 as in ONNX.
    Int(i64),
    /// A list of integers, printed with colons: `2:2`.
    Ints(Vec<i64>),
    /// A number.
    Float(f64),
    /// A word out of a fixed list: `NHWC`.
    Word(String),
}

/// The declared type and default of an attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AttrType {
    /// Integer with its default.
    Int(i64),
    /// List of integers; the default is the empty list.
    Ints,
    /// Number with its default.
    Float(f64),
    /// One of these words; the first is the default.
    Word(&'static [&'static str]),
}

/// Declaration of one attribute in an op's record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttrDecl {
    /// ONNX's name, or ours where ONNX has none.
    pub name: &'static str,
    /// Type and default.
    pub kind: AttrType,
    /// One line for help and docs.
    pub doc: &'static str,
}

impl AttrDecl {
    /// The default as a value.
    pub fn default(&self) -> Attr {
        match self.kind {
            AttrType::Int(v) => Attr::Int(v),
            AttrType::Ints => Attr::Ints(Vec::new()),
            AttrType::Float(v) => Attr::Float(v),
            AttrType::Word(list) => Attr::Word(list.first().copied().unwrap_or_default().to_string()),
        }
    }

    /// Refuses (`BadArgument`) a value of another type, or a word that the attribute does not have: whoever asked for it would get
    /// the default's results.
    pub fn check(&self, value: &Attr) -> Result<(), Error> {
        let want = match (self.kind, value) {
            (AttrType::Int(_), Attr::Int(_))
            | (AttrType::Ints, Attr::Ints(_))
            | (AttrType::Float(_), Attr::Float(_)) => {
                return Ok(());
            }
            (AttrType::Word(list), Attr::Word(word)) if list.contains(&word.as_str()) => return Ok(()),
            (AttrType::Int(_), _) => "an integer".to_string(),
            (AttrType::Ints, _) => "a list of integers".to_string(),
            (AttrType::Float(_), _) => "a number with a fraction".to_string(),
            (AttrType::Word(list), _) => format!("one of {}", list.join(" ")),
        };
        Err(Error::new(Code::BadArgument, format!("attribute {}: {value:?} is not {want}", self.name)))
    }

    /// Reads a value of the declared type from text; lists are written `1:2:3`.
    pub fn parse(&self, text: &str) -> Result<Attr, Error> {
        let bad =
            |want: &str| Error::new(Code::BadArgument, format!("attribute {}: '{text}' is not {want}", self.name));
        match self.kind {
            AttrType::Int(_) => text.parse().map(Attr::Int).map_err(|_| bad("an integer")),
            AttrType::Float(_) => match text.parse::<f64>() {
                Ok(v) => Ok(Attr::Float(v)),
                Err(_) => Err(bad("a number")),
            },
            AttrType::Word(list) if list.contains(&text) => Ok(Attr::Word(text.to_string())),
            AttrType::Word(list) => Err(bad(&format!("one of {}", list.join(" ")))),
            AttrType::Ints if text.is_empty() => Ok(Attr::Ints(Vec::new())),
            AttrType::Ints => text
                .split(':')
                .map(|p| p.parse::<i64>())
                .collect::<Result<Vec<_>, _>>()
                .map(Attr::Ints)
                .map_err(|_| bad("a list such as 2:2")),
        }
    }
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Int(v) => write!(f, "{v}"),
            Attr::Float(v) => write!(f, "{v}"),
            Attr::Word(v) => f.write_str(v),
            Attr::Ints(v) => {
                let parts: Vec<_> = v.iter().map(i64::to_string).collect();
                f.write_str(&parts.join(":"))
            }
        }
    }
}

/// Attributes of one call, sorted by name; only values that differ from the default need be present.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attrs(std::collections::BTreeMap<String, Attr>);

impl Attrs {
    /// No attribute set: every default holds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces one attribute.
    pub fn with(mut self, name: &str, value: Attr) -> Self {
        self.0.insert(name.to_string(), value);
        self
    }

    /// The value given, if any.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.get(name)
    }

    /// A number attribute (an integer is accepted), or `default`.
    pub fn float(&self, name: &str, default: f64) -> f64 {
        match self.0.get(name) {
            Some(Attr::Float(v)) => *v,
            Some(Attr::Int(v)) => *v as f64,
            _ => default,
        }
    }

    /// An integer attribute, or `default`.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        match self.0.get(name) {
            Some(Attr::Int(v)) => *v,
            _ => default,
        }
    }

    /// A list attribute; empty when absent.
    pub fn ints(&self, name: &str) -> &[i64] {
        match self.0.get(name) {
            Some(Attr::Ints(v)) => v,
            _ => &[],
        }
    }

    /// A word attribute, or `default`.
    pub fn word<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        match self.0.get(name) {
            Some(Attr::Word(v)) => v,
            _ => default,
        }
    }

    /// All given attributes in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Attr)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// True when every default holds.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_type_is_refused() {
        let decl = |kind| AttrDecl { name: "a", kind, doc: "" };
        let word = |w: &str| Attr::Word(w.into());
        let all = [Attr::Int(1), Attr::Ints(vec![1]), Attr::Float(1.0), word("nchw")];
        let kinds = [AttrType::Int(0), AttrType::Ints, AttrType::Float(0.0), AttrType::Word(&["nchw", "nhwc"])];
        for (i, kind) in kinds.into_iter().enumerate() {
            for (j, value) in all.iter().enumerate() {
                assert_eq!(decl(kind).check(value).is_ok(), i == j, "{kind:?} {value:?}");
            }
        }
        let e = decl(kinds[3]).check(&word("NHWC")).unwrap_err();
        assert!(e.code() == Code::BadArgument && e.to_string().contains("one of nchw nhwc"), "{e}");
    }
}
